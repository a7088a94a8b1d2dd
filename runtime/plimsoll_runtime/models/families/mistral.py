"""Mistral: Llama with an optional sliding window on each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_sliding
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131_072}
"""Defaults of missing fields. Null means no window, and as many key heads as query heads."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of MistralForCausalLM."""
    values = {**DEFAULTS, **values}
    config = Config(values)
    spec = gated_decoder("MistralForCausalLM", Config({**values, "attention_bias": False, "mlp_bias": False}))
    return with_sliding(config, spec)
