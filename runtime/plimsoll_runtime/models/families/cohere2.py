"""Cohere 2: windows on three layers of four, and no rope on the fourth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.changing import with_mixers, with_windows
from plimsoll_runtime.models.families.cohere import side_by_side
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS_V2 = {
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "logit_scale": 0.0625,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
"""What a field that is missing means."""


def describe_v2(values: Mapping[str, Any]) -> DecoderSpec:
    """Cohere2ForCausalLM."""
    config = Config({**DEFAULTS_V2, **values, "mlp_bias": False})
    spec = side_by_side("Cohere2ForCausalLM", config, theta=10_000.0)
    every = config.positive("sliding_window_pattern", int)
    windows = config.windows(
        ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(spec.num_layers)]
    )
    return with_mixers(with_windows(spec, windows), lambda m: m if m.shape.window else replace(m, rope=None))
