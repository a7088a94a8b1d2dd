"""Ministral: Mistral with a window on the layers that `layer_types` lists as sliding, by default on all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_windows
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131_072}
"""Defaults of missing fields. Null means no window, and as many key heads as query heads."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of MinistralForCausalLM."""
    config = Config({**DEFAULTS, **values, "attention_bias": False, "mlp_bias": False})
    spec = gated_decoder("MinistralForCausalLM", config)
    window = config.get("sliding_window", int, default=0) or None
    unsaid = "full_attention" if window is None else "sliding_attention"
    return with_windows(spec, config.windows([unsaid] * spec.num_layers))
