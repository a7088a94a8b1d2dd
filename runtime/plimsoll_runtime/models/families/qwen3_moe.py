"""Qwen3-MoE: Qwen3 with mixtures, and with a window on all layers or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import every_step, experts_of, one_of
from plimsoll_runtime.models.families.common.variants import mlp_of, with_mixers, with_mixture, with_sliding
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import Mixture, TopK

DEFAULTS = {"num_key_value_heads": 4, "sliding_window": 4096, "max_position_embeddings": 32_768}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Qwen3MoeForCausalLM."""
    config = Config({**DEFAULTS, **values, "mlp_bias": False})
    spec = gated_decoder("Qwen3MoeForCausalLM", config)
    norm = HeadNorm(spec.layers[0].norm)
    spec = with_mixers(spec, lambda mixer: replace(mixer, head_norm=norm))
    if config.get("use_sliding_window", bool, default=False):
        spec = with_sliding(config, spec)
    count = one_of(config, "num_experts", "num_local_experts")
    experts, chosen = experts_of(config, count, "num_experts_per_tok", (128, 8))
    mixture = Mixture(
        experts,
        chosen,
        config.positive("moe_intermediate_size", int, 768),
        TopK(renormalised=config.get("norm_topk_prob", bool, default=False)),
        mlp_of(spec).activation,
    )
    return with_mixture(spec, mixture, every_step(config))
