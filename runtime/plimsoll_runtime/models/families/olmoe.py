"""OLMoE: Llama with mixtures, and with one norm over all query heads and one over all key heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import with_experts
from plimsoll_runtime.models.families.common.variants import with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import TopK

DEFAULTS = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "mlp_bias": False}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of OlmoeForCausalLM."""
    config = Config({**DEFAULTS, **values})
    config.refuse_unless(clip_qkv=None)
    spec = gated_decoder("OlmoeForCausalLM", config)
    norm = HeadNorm(spec.layers[0].norm, together=True)
    spec = with_mixers(spec, lambda mixer: replace(mixer, head_norm=norm))
    routing = TopK(renormalised=config.get("norm_topk_prob", bool, default=False))
    return with_experts(config, spec, "num_experts", (64, 8), routing)
