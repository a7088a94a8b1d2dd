"""Llama, and what computes as Llama does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec import AttentionShape, DecoderSpec


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """LlamaForCausalLM."""
    config = Config(values)
    config.refuse_unless(hidden_act="silu", pretraining_tp=1)
    heads, kv_heads, head_dim = config.heads()
    layers = config.layers()
    bias = config.get("attention_bias", bool, default=False)
    return DecoderSpec(
        architecture="LlamaForCausalLM",
        vocab_size=config.get("vocab_size", int),
        hidden_size=config.get("hidden_size", int),
        intermediate_size=config.get("intermediate_size", int),
        attention=(AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5),) * layers,
        ropes=(config.rope(head_dim),) * layers,
        max_positions=config.get("max_position_embeddings", int, 2048),
        norm_eps=config.get("rms_norm_eps", float, 1e-6),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.get("mlp_bias", bool, default=False),
        tied_embeddings=config.get("tie_word_embeddings", bool, default=False),
    )
