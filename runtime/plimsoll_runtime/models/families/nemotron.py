"""Nemotron: layer norms whose factor is weight + 1; half of each head is rotated; plain MLPs with ReLU squared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.arcee import plain_mlps
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_layers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.norm import Norm

DEFAULTS = {"max_position_embeddings": 4096, "norm_eps": 1e-5, "hidden_act": "relu2"}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of NemotronForCausalLM."""
    config = Config({**DEFAULTS, **values})
    norm = Norm(config.get("norm_eps", float), "layer", offset=1.0, biased=True)
    spec = plain_mlps(gated_decoder("NemotronForCausalLM", config, partial=0.5))
    return replace(with_layers(spec, lambda layer: replace(layer, norm=norm)), final_norm=norm)
