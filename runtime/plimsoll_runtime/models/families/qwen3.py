"""Qwen3: norms over heads of queries and keys; biases only if the config enables them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.families.qwen2 import DEFAULTS, windowed
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Qwen3ForCausalLM."""
    values = {**DEFAULTS, "head_dim": 128, **values, "mlp_bias": False}
    config = Config(values)
    spec = gated_decoder("Qwen3ForCausalLM", config)
    normed = with_mixers(spec, lambda mixer: replace(mixer, head_norm=HeadNorm(spec.layers[0].norm)))
    return windowed(config, normed)
