"""GPT-BigCode (StarCoder): GPT-2 with one key head for all query heads, and matrices not transposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families import gpt2
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_mixers
from plimsoll_runtime.models.spec.decoder import DecoderSpec

NAMES = replace(gpt2.NAMES, transposed=False)
DEFAULTS = {**gpt2.DEFAULTS, "activation_function": "gelu_pytorch_tanh", "multi_query": True}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GPTBigCodeForCausalLM. Without multi_query, files store query, key and value head by head."""
    values = {**DEFAULTS, **values}
    spec = gpt2.describe(values)
    shared = Config(values).get("multi_query", bool)
    if shared:
        spec = with_mixers(spec, lambda mixer: replace(mixer, shape=replace(mixer.shape, kv_heads=1)))
    names = replace(NAMES, interleaved=not shared)
    return replace(spec, architecture="GPTBigCodeForCausalLM", names=names)
