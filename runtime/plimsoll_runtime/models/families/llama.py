"""Llama, and what computes as Llama does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec.attention import AttentionShape, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Head
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.models.spec.layer import LayerSpec
from plimsoll_runtime.models.spec.norm import Norm


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """LlamaForCausalLM."""
    config = Config(values)
    config.refuse_unless(hidden_act="silu", pretraining_tp=1)
    heads, kv_heads, head_dim = config.heads()
    bias = config.get("attention_bias", bool, default=False)
    norm = Norm(config.get("rms_norm_eps", float, 1e-6))
    layer = LayerSpec(
        mixer=SelfAttention(
            AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5),
            config.rope(head_dim),
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=GatedMlp(config.get("intermediate_size", int), "silu", bias=config.get("mlp_bias", bool, default=False)),
        norm=norm,
    )
    return DecoderSpec(
        architecture="LlamaForCausalLM",
        vocab_size=config.get("vocab_size", int),
        hidden_size=config.get("hidden_size", int),
        layers=(layer,) * config.layers(),
        max_positions=config.get("max_position_embeddings", int, 2048),
        final_norm=norm,
        head=Head(tied=config.get("tie_word_embeddings", bool, default=False)),
    )
