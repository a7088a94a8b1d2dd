"""EXAONE 4: norms after attention and MLP, and over heads of queries and keys.

If any layers have windows, only those have RoPE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_layers, with_mixers, with_windows
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(norms=("", "post_attention_layernorm", "", "post_feedforward_layernorm"))
DEFAULTS = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Exaone4ForCausalLM."""
    config = Config({**DEFAULTS, **values, "attention_bias": False, "mlp_bias": False})
    spec = gated_decoder("Exaone4ForCausalLM", config, names=NAMES)
    norm = HeadNorm(spec.layers[0].norm)
    normed = with_mixers(spec, lambda mixer: replace(mixer, head_norm=norm))
    normed = with_layers(normed, lambda layer: replace(layer, before=False, after=True))
    if config.values["sliding_window"] is None:
        return normed
    windowed = with_windows(normed, config.windows(_types(config, spec.num_layers)))
    return with_mixers(windowed, lambda m: m if m.shape.window else replace(m, rope=None))


def _types(config: Config, layers: int) -> list[str]:
    """Return the layer types of a pattern: a number n (each n-th layer is full), or letters to repeat (L: window)."""
    pattern = config.values["sliding_window_pattern"]
    if isinstance(pattern, str) and pattern:
        sliding = [pattern[i % len(pattern)] == "L" for i in range(layers)]
    else:
        every = config.positive("sliding_window_pattern", int)
        sliding = [(i + 1) % every != 0 for i in range(layers)]
    return ["sliding_attention" if each else "full_attention" for each in sliding]
