"""Qwen2-MoE: mixtures with a gated shared expert; optionally windows on every second of the lower layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import every_step, experts_of
from plimsoll_runtime.models.families.common.variants import mlp_of, with_mixers, with_mixture, with_windows
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, TopK

DEFAULTS = {"num_key_value_heads": 16, "sliding_window": 4096, "max_position_embeddings": 32_768}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Qwen2MoeForCausalLM."""
    config = Config({**DEFAULTS, **values, "attention_bias": False, "mlp_bias": False})
    spec = gated_decoder("Qwen2MoeForCausalLM", config)
    biased = config.get("qkv_bias", bool, default=True)
    spec = _windowed(config, with_mixers(spec, lambda mixer: replace(mixer, qkv_bias=biased)))
    activation = mlp_of(spec).activation
    experts, chosen = experts_of(config, "num_experts", "num_experts_per_tok", (60, 4))
    mixture = Mixture(
        experts,
        chosen,
        config.positive("moe_intermediate_size", int, 1408),
        TopK(renormalised=config.get("norm_topk_prob", bool, default=False)),
        activation,
        shared=GatedMlp(config.positive("shared_expert_intermediate_size", int, 5632), activation),
        shared_gated=True,
    )
    return with_mixture(spec, mixture, every_step(config))


def _windowed(config: Config, spec: DecoderSpec) -> DecoderSpec:
    sliding = config.get("use_sliding_window", bool, default=False)
    upper = config.get("max_window_layers", int, 28)
    slide = [sliding and number < upper and number % 2 == 0 for number in range(spec.num_layers)]
    return with_windows(spec, config.windows(["sliding_attention" if each else "full_attention" for each in slide]))
