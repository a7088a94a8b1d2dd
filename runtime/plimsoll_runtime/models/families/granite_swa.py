"""Granite with windows on three layers of four, a sink for each head, and optionally a rope base for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families import granite
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import self_attention, with_mixers, with_windows
from plimsoll_runtime.models.families.granite import NAMES, describe_shared
from plimsoll_runtime.models.spec.attention import RopeSpec
from plimsoll_runtime.models.spec.decoder import DecoderSpec

MOE = replace(
    NAMES,
    experts=replace(
        NAMES.experts,
        router="block_sparse_moe.router",
        gate_up=("block_sparse_moe.experts.gate_up_proj",),
        down="block_sparse_moe.experts.down_proj",
        suffix="",
    ),
)
DEFAULTS = {"sliding_window": 128}
DENSE = {
    **DEFAULTS,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GraniteSWAForCausalLM."""
    values = {**DENSE, **values}
    return replace(_sliding(Config(values), granite.describe(values)), architecture="GraniteSWAForCausalLM")


def describe_moe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GraniteMoeSWAForCausalLM."""
    values = {**DEFAULTS, **values}
    spec = _sliding(Config(values), describe_shared(values))
    return replace(spec, architecture="GraniteMoeSWAForCausalLM", names=MOE)


def _sliding(config: Config, spec: DecoderSpec) -> DecoderSpec:
    spec = with_mixers(spec, lambda mixer: replace(mixer, shape=replace(mixer.shape, sinks=True)))
    kinds = ["sliding_attention" if i % 4 else "full_attention" for i in range(spec.num_layers)]
    spec = with_windows(spec, config.windows(kinds))
    thetas = config.values.get("layer_rope_theta")
    if thetas is None:
        return spec
    if not isinstance(thetas, list) or len(thetas) != spec.num_layers:
        raise ModelError(f"config.json: layer_rope_theta is {thetas!r}; it must have {spec.num_layers} numbers")
    ropes = [
        _rope(self_attention(layer).rope, Config({"theta": each}))
        for layer, each in zip(spec.layers, thetas, strict=True)
    ]
    layers = zip(spec.layers, ropes, strict=True)
    return replace(
        spec, layers=tuple(replace(layer, mixer=replace(self_attention(layer), rope=rope)) for layer, rope in layers)
    )


def _rope(rope: RopeSpec | None, said: Config) -> RopeSpec | None:
    """Return a layer's rope with the base `theta` of `said`; None, which is no rope, if the base is 0."""
    theta = said.get("theta", float)
    return None if rope is None or theta == 0 else replace(rope, theta=theta)
