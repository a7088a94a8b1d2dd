"""Phi (1 to 2): parallel attention and MLP after one norm, half of each head is rotated, biases in all products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.gpt import plain_decoder
from plimsoll_runtime.models.spec.attention import AttentionShape, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import PlainMlp
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(
    output="self_attn.dense",
    gate_up=("mlp.fc1",),
    down="mlp.fc2",
    norms=("input_layernorm", "", "", ""),
    final_norm="model.final_layernorm",
)
DEFAULTS = {"vocab_size": 51200, "max_position_embeddings": 2048, "hidden_act": "gelu_new"}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of PhiForCausalLM."""
    config = Config({**DEFAULTS, **values})
    config.refuse_unless(qk_layernorm=False)
    heads, kv_heads, head_dim = config.heads()
    shape = AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5)
    return plain_decoder(
        "PhiForCausalLM",
        config,
        SelfAttention(shape, config.rope(head_dim, partial=0.5), qkv_bias=True, output_bias=True),
        PlainMlp(config.get("intermediate_size", int, 8192), config.activation("hidden_act"), bias=True),
        names=NAMES,
        eps="layer_norm_eps",
        residual="parallel-one-norm",
        head_bias=True,
    )
