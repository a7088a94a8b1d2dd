"""GPT-NeoX (Pythia): parallel attention and MLP, each after its own norm; a quarter of each head is rotated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.gpt import plain_decoder, renamed
from plimsoll_runtime.models.spec.attention import AttentionShape, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import PlainMlp
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(
    embedding="gpt_neox.embed_in",
    layer="gpt_neox.layers.{}",
    query_key_value=("attention.query_key_value",),
    interleaved=True,
    output="attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    final_norm="gpt_neox.final_layer_norm",
    head="embed_out",
    ignored=("rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"),
)
DEFAULTS = {"vocab_size": 50432, "max_position_embeddings": 2048, "hidden_act": "gelu", "intermediate_size": 24576}
"""Defaults of missing fields."""
FIELDS = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GPTNeoXForCausalLM."""
    config = Config(renamed(values, FIELDS, DEFAULTS))
    heads, _, head_dim = config.heads()
    bias = config.get("attention_bias", bool, default=True)
    rope = config.rope(head_dim, partial=0.25)
    shape = AttentionShape(heads, heads, head_dim, head_dim**-0.5)
    return plain_decoder(
        "GPTNeoXForCausalLM",
        config,
        SelfAttention(shape, rope, qkv_bias=bias, output_bias=bias),
        PlainMlp(config.get("intermediate_size", int), config.activation("hidden_act"), bias=True),
        names=NAMES,
        eps="layer_norm_eps",
        residual="parallel" if config.get("use_parallel_residual", bool, default=True) else "sequential",
    )
