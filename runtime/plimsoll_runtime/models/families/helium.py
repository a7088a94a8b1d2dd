"""Helium: Llama with RoPE of neighbouring dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {
    "num_key_value_heads": 20,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-8,
}
"""Defaults of missing fields."""
THETA = 100_000.0


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of HeliumForCausalLM."""
    spec = gated_decoder("HeliumForCausalLM", Config({**DEFAULTS, **values}), pairs=True, theta=THETA)
    return with_mixers(spec, lambda mixer: replace(mixer, output_bias=False))
