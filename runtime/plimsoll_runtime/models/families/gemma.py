"""Gemma (the first): Llama with norms whose factor is weight + 1, scaled embeddings and a tanh GeLU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding

DEFAULTS = {
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GemmaForCausalLM. The activation is always the same: the first configs called it `gelu`."""
    config = Config({**DEFAULTS, **values, "hidden_act": "gelu_pytorch_tanh"})
    config.refuse_unless(use_bidirectional_attention=False)
    spec = gated_decoder("GemmaForCausalLM", config, norm_offset=1.0)
    return replace(spec, embedding=Embedding(scale=spec.hidden_size**0.5))
