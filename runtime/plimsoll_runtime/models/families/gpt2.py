"""GPT-2: a table of positions, and matrices stored transposed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.gpt import inner_size, plain_decoder, renamed
from plimsoll_runtime.models.spec.attention import AttentionShape, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding
from plimsoll_runtime.models.spec.feed_forward import PlainMlp
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(
    embedding="transformer.wte",
    positions="transformer.wpe",
    layer="transformer.h.{}",
    query_key_value=("attn.c_attn",),
    output="attn.c_proj",
    gate_up=("mlp.c_fc",),
    down="mlp.c_proj",
    norms=("ln_1", "", "ln_2", ""),
    final_norm="transformer.ln_f",
    transposed=True,
    ignored=(".attn.bias", ".attn.masked_bias"),
)
FIELDS = {
    "n_embd": "hidden_size",
    "n_positions": "max_position_embeddings",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
}
DEFAULTS = {
    "vocab_size": 50257,
    "n_embd": 768,
    "n_positions": 1024,
    "n_head": 12,
    "n_layer": 12,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GPT2LMHeadModel."""
    config = Config(renamed(values, FIELDS, DEFAULTS))
    config.refuse_unless(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    heads, _, head_dim = config.heads()
    scale = head_dim**-0.5 if config.get("scale_attn_weights", bool, default=True) else 1.0
    return plain_decoder(
        "GPT2LMHeadModel",
        config,
        SelfAttention(AttentionShape(heads, heads, head_dim, scale), None, qkv_bias=True, output_bias=True),
        PlainMlp(inner_size(config, "n_inner"), config.activation("activation_function"), bias=True),
        names=NAMES,
        eps="layer_norm_epsilon",
        embedding=Embedding(positions=config.get("max_position_embeddings", int)),
    )
