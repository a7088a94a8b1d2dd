"""Mistral: Llama with a sliding window over every layer, where one is set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families import llama
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec import DecoderSpec


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """MistralForCausalLM."""
    config = Config(values)
    spec = llama.describe({**values, "attention_bias": False, "mlp_bias": False})
    window = config.get("sliding_window", int, default=0) or None
    return replace(
        spec,
        architecture="MistralForCausalLM",
        attention=tuple(replace(shape, window=window) for shape in spec.attention),
    )
