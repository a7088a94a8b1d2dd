"""Llama, and the gated decoder that many families build on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.spec.attention import AttentionShape, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Head, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import LLAMA, Names


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of LlamaForCausalLM."""
    return gated_decoder("LlamaForCausalLM", Config(values))


def gated_decoder(
    architecture: str,
    config: Config,
    *,
    partial: float | None = None,
    pairs: bool = False,
    theta: float = 10_000.0,
    norm_offset: float = 0.0,
    names: Names = LLAMA,
) -> DecoderSpec:
    """Return a decoder with RMS norms, RoPE and gated MLPs. `partial`, `pairs` and `theta`: see Config.rope."""
    config.refuse_unless(pretraining_tp=1)
    heads, kv_heads, head_dim = config.heads()
    bias = config.get("attention_bias", bool, default=False)
    norm = Norm(config.get("rms_norm_eps", float, 1e-6), offset=norm_offset)
    layer = LayerSpec(
        SelfAttention(
            AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5),
            config.rope(head_dim, partial=partial, pairs=pairs, theta=theta),
            qkv_bias=bias,
            output_bias=bias,
        ),
        GatedMlp(
            config.get("intermediate_size", int),
            config.activation("hidden_act", "silu"),
            bias=config.get("mlp_bias", bool, default=False),
        ),
        norm,
    )
    return DecoderSpec(
        architecture,
        vocab_size=config.get("vocab_size", int),
        hidden_size=config.get("hidden_size", int),
        layers=(layer,) * config.layers(),
        max_positions=config.get("max_position_embeddings", int, 2048),
        final_norm=norm,
        head=Head(tied=config.get("tie_word_embeddings", bool, default=False)),
        names=names,
    )
