"""The first GPT: GPT-2 with norms after the sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families import gpt2
from plimsoll_runtime.models.families.common.variants import with_layers
from plimsoll_runtime.models.spec.decoder import DecoderSpec

NAMES = replace(
    gpt2.NAMES,
    embedding="transformer.tokens_embed",
    positions="transformer.positions_embed",
    norms=("", "ln_1", "", "ln_2"),
    final_norm="",
)
DEFAULTS = {"vocab_size": 40478, "n_positions": 512, "afn": "gelu"}
"""Defaults of missing fields."""
ACTIVATIONS = {"gelu": "gelu_new", "swish": "silu"}


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of OpenAIGPTLMHeadModel."""
    values = {**DEFAULTS, **values}
    said = values["afn"]
    activation = ACTIVATIONS.get(said, said) if isinstance(said, str) else said
    spec = gpt2.describe({**values, "activation_function": activation, "n_inner": None, "scale_attn_weights": True})
    spec = with_layers(spec, lambda layer: replace(layer, before=False, after=False, residual="normed"))
    return replace(spec, architecture="OpenAIGPTLMHeadModel", names=NAMES, final_norm=None)
