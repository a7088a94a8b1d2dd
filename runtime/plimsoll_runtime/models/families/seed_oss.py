"""Seed-OSS: Llama with biases of queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 524_288,
    "attention_bias": True,
    "attention_out_bias": False,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of SeedOssForCausalLM."""
    config = Config({**DEFAULTS, **values})
    bias = config.get("attention_out_bias", bool)
    spec = gated_decoder("SeedOssForCausalLM", config)
    return with_mixers(spec, lambda mixer: replace(mixer, output_bias=bias))
