"""SmolLM3: Llama without RoPE on every fourth layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import self_attention, with_windows
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "no_rope_layer_interval": 4,
}
"""Defaults of missing fields."""
THETA = 2_000_000.0


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of SmolLM3ForCausalLM."""
    config = Config({**DEFAULTS, **values})
    spec = gated_decoder("SmolLM3ForCausalLM", config, theta=THETA)
    turns = turning(config, spec.num_layers)
    layers = [
        layer if turn else replace(layer, mixer=replace(self_attention(layer), rope=None))
        for layer, turn in zip(spec.layers, turns, strict=True)
    ]
    spec = replace(spec, layers=tuple(layers))
    if not config.get("use_sliding_window", bool, default=False):
        return spec
    return with_windows(spec, config.windows(["sliding_attention" if t else "full_attention" for t in turns]))


def turning(config: Config, layers: int) -> list[bool]:
    """Return for each layer whether it has RoPE: 1 in `no_rope_layers` means that it has.

    Without that list, all layers except every no_rope_layer_interval-th have RoPE.
    """
    every = config.positive("no_rope_layer_interval", int)
    listed = config.values.get("no_rope_layers") or [(i + 1) % every != 0 for i in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers:
        raise ModelError(
            f"config.json: no_rope_layers is {listed!r}; it must have a number for each of {layers} layers"
        )
    return [bool(each) for each in listed]
