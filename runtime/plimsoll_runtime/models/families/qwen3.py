"""Qwen3: norms over the heads of queries and keys; no biases unless the config asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families import llama
from plimsoll_runtime.models.families.qwen2 import DEFAULTS, windowed
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec import DecoderSpec


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Qwen3ForCausalLM."""
    values = {**DEFAULTS, "head_dim": 128, **values, "mlp_bias": False}
    config = Config(values)
    spec = llama.describe(values)
    return replace(spec, architecture="Qwen3ForCausalLM", qk_norm=True, attention=windowed(config, spec.attention))
