"""Qwen2: biases of queries, keys and values; optional sliding windows on the upper layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_mixers, with_windows
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {"num_key_value_heads": 32, "sliding_window": 4096, "max_position_embeddings": 32_768}
"""Defaults of missing fields. Null means no window, and as many key heads as query heads."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Qwen2ForCausalLM."""
    values = {**DEFAULTS, **values}
    config = Config(values)
    config.refuse_unless(use_mrope=False)
    spec = gated_decoder("Qwen2ForCausalLM", Config({**values, "attention_bias": False, "mlp_bias": False}))
    return windowed(config, with_mixers(spec, lambda mixer: replace(mixer, qkv_bias=True)))


def windowed(config: Config, spec: DecoderSpec) -> DecoderSpec:
    """Return a spec with windows on sliding layers; unchanged unless use_sliding_window is true.

    Sliding layers are those in layer_types; without that list, the layers from max_window_layers on.
    """
    if not config.get("use_sliding_window", bool, default=False):
        return spec
    full = config.get("max_window_layers", int, default=28)
    types = ["full_attention" if i < full else "sliding_attention" for i in range(spec.num_layers)]
    return with_windows(spec, config.windows(types))
