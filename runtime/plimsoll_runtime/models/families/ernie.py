"""ERNIE 4.5: Llama whose ropes turn pairs, and which may have biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "use_bias": False,
}
"""What a field that is missing means."""
THETA = 500_000.0


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Ernie4_5ForCausalLM."""
    values = {**DEFAULTS, **values}
    config = Config({**values, "attention_bias": values["use_bias"], "mlp_bias": values["use_bias"]})
    return gated_decoder("Ernie4_5ForCausalLM", config, pairs=True, theta=THETA)
