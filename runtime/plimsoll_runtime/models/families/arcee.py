"""Arcee: Llama with plain MLPs, whose activation is ReLU squared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_layers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, PlainMlp

DEFAULTS = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "relu2"}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of ArceeForCausalLM."""
    return plain_mlps(gated_decoder("ArceeForCausalLM", Config({**DEFAULTS, **values})))


def plain_mlps(spec: DecoderSpec) -> DecoderSpec:
    """Return a spec with plain MLPs instead of gated ones, of equal width and activation."""

    def plain(layer: LayerSpec) -> LayerSpec:
        assert isinstance(layer.mlp, GatedMlp)
        return replace(layer, mlp=PlainMlp(layer.mlp.inner, layer.mlp.activation, layer.mlp.bias))

    return with_layers(spec, plain)
