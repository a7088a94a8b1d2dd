"""OLMo: Llama with layer norms without weights, and optionally clipped queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_layers, with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.norm import Norm

DEFAULTS = {"max_position_embeddings": 2048}
"""Defaults of missing fields."""
NORM = Norm(1e-5, "layer", weighted=False)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of OlmoForCausalLM."""
    config = Config({**DEFAULTS, **values, "mlp_bias": False})
    clip = config.get("clip_qkv", float, 0.0) or None
    spec = gated_decoder("OlmoForCausalLM", config)
    clipped = with_mixers(spec, lambda mixer: replace(mixer, clip=clip))
    return replace(with_layers(clipped, lambda layer: replace(layer, norm=NORM)), final_norm=NORM)
