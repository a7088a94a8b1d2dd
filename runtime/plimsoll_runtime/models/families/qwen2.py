"""Qwen2: biases on queries, keys and values; sliding windows on the upper layers where they are switched on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families import llama
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec import AttentionShape, DecoderSpec

DEFAULTS = {"num_key_value_heads": 32, "sliding_window": 4096, "max_position_embeddings": 32_768}
"""What a field that is missing means (null: no window, as many key and value heads as others)."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Qwen2ForCausalLM."""
    values = {**DEFAULTS, **values}
    config = Config(values)
    config.refuse_unless(use_mrope=False)
    spec = llama.describe({**values, "attention_bias": False, "mlp_bias": False})
    return replace(spec, architecture="Qwen2ForCausalLM", qkv_bias=True, attention=windowed(config, spec.attention))


def windowed(config: Config, shapes: tuple[AttentionShape, ...]) -> tuple[AttentionShape, ...]:
    """The layers' shapes with the window on those that slide: layer_types, else from max_window_layers on."""
    if not config.get("use_sliding_window", bool, default=False):
        return shapes
    window = config.get("sliding_window", int, default=0) or None
    full = config.get("max_window_layers", int, default=28)
    default = ["full_attention" if i < full else "sliding_attention" for i in range(len(shapes))]
    types = config.layer_types(default)
    return tuple(
        replace(shape, window=window) if kind == "sliding_attention" else shape
        for shape, kind in zip(shapes, types, strict=True)
    )
