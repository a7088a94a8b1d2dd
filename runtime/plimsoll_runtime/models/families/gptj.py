"""GPT-J: parallel attention and MLP after one norm; RoPE of neighbouring dimensions on the first 64 of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.gpt import inner_size, plain_decoder, renamed
from plimsoll_runtime.models.families.gpt2 import FIELDS
from plimsoll_runtime.models.spec.attention import AttentionShape, RopeSpec, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import PlainMlp
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(
    embedding="transformer.wte",
    layer="transformer.h.{}",
    query_key_value=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    output="attn.out_proj",
    gate_up=("mlp.fc_in",),
    down="mlp.fc_out",
    norms=("ln_1", "", "", ""),
    final_norm="transformer.ln_f",
    ignored=(".attn.bias", ".attn.masked_bias", ".attn.embed_positions"),
)
DEFAULTS = {
    "vocab_size": 50400,
    "n_embd": 4096,
    "n_positions": 2048,
    "n_head": 16,
    "n_layer": 28,
    "rotary_dim": 64,
    "activation_function": "gelu_new",
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GPTJForCausalLM."""
    config = Config(renamed(values, FIELDS, DEFAULTS))
    heads, _, head_dim = config.heads()
    turned = config.get("rotary_dim", int)
    if not 0 < turned <= head_dim or turned % 2:
        raise ModelError(f"config.json: rotary_dim is {turned}; it must be even and from 2 to {head_dim}")
    shape = AttentionShape(heads, heads, head_dim, head_dim**-0.5)
    return plain_decoder(
        "GPTJForCausalLM",
        config,
        SelfAttention(shape, RopeSpec(turned, 10_000.0, pairs=True)),
        PlainMlp(inner_size(config, "n_inner"), config.activation("activation_function"), bias=True),
        names=NAMES,
        eps="layer_norm_epsilon",
        residual="parallel-one-norm",
        head_bias=True,
    )
