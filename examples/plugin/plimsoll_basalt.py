"""Basalt: Llama with plain MLPs, whose ropes turn pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.arcee import plain_mlps
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {"max_position_embeddings": 4096, "hidden_act": "relu2"}
"""What a field that is missing means."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """BasaltForCausalLM."""
    config = Config({**DEFAULTS, **values})
    return plain_mlps(gated_decoder("BasaltForCausalLM", config, pairs=True))
