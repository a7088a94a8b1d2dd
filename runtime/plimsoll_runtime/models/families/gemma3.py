"""Gemma 3 (text): windows on five layers of six with a rope of their own, four norms a layer, norms over heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.reading import Config, rope_spec
from plimsoll_runtime.models.spec import AttentionShape, DecoderSpec, RopeSpec

LOCAL_THETA, GLOBAL_THETA = 10_000.0, 1_000_000.0


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Gemma3ForCausalLM."""
    config = Config(values)
    config.refuse_unless(
        hidden_activation="gelu_pytorch_tanh",
        hidden_act="gelu_pytorch_tanh",
        use_bidirectional_attention=False,
    )
    heads, kv_heads, head_dim = config.heads()
    pattern = config.get("sliding_window_pattern", int, 6)
    layers = config.get("num_hidden_layers", int)
    types = config.layer_types(
        ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)]
    )
    scale = config.get("query_pre_attn_scalar", float, 256.0) ** -0.5
    window = config.get("sliding_window", int, 4096)
    softcap = config.get("attn_logit_softcapping", float, 0.0) or None
    shapes = {
        "full_attention": AttentionShape(heads, kv_heads, head_dim, scale, softcap=softcap),
        "sliding_attention": AttentionShape(heads, kv_heads, head_dim, scale, window, softcap),
    }
    ropes = {kind: _rope(config, kind, head_dim) for kind in shapes}
    hidden = config.get("hidden_size", int)
    bias = config.get("attention_bias", bool, default=False)
    return DecoderSpec(
        architecture="Gemma3ForCausalLM",
        vocab_size=config.get("vocab_size", int, 262_208),
        hidden_size=hidden,
        intermediate_size=config.get("intermediate_size", int),
        attention=tuple(shapes[kind] for kind in types),
        ropes=tuple(ropes[kind] for kind in types),
        max_positions=config.get("max_position_embeddings", int, 131_072),
        norm_eps=config.get("rms_norm_eps", float, 1e-6),
        norm_offset=1.0,
        post_norms=True,
        qk_norm=True,
        activation="gelu_tanh",
        qkv_bias=bias,
        output_bias=bias,
        embedding_scale=hidden**0.5,
        tied_embeddings=config.get("tie_word_embeddings", bool, default=True),
        final_softcap=config.get("final_logit_softcapping", float, 0.0) or None,
    )


def _rope(config: Config, kind: str, head_dim: int) -> RopeSpec:
    """Newer configs have a dictionary for each layer type; older ones scale the global rope only."""
    nested = config.values.get("rope_parameters") or {}
    if kind in nested:
        default = GLOBAL_THETA if kind == "full_attention" else LOCAL_THETA
        return config.rope(head_dim, layer_type=kind, default_theta=default)
    limit = config.get("max_position_embeddings", int, 131_072)
    if kind == "sliding_attention":
        return rope_spec({}, head_dim, config.get("rope_local_base_freq", float, LOCAL_THETA), limit)
    theta = config.get("rope_theta", float, GLOBAL_THETA)
    return rope_spec(config.values.get("rope_scaling") or nested, head_dim, theta, limit)
