"""Ministral 3: Mistral with queries that grow with their position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_mixers, with_sliding
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import Growth
from plimsoll_runtime.models.spec.decoder import DecoderSpec

ROPE = {
    "type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
DEFAULTS = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
"""Defaults of missing fields."""
OF_QUERIES = ("llama_4_scaling_beta", "max_position_embeddings")
"""Keys among the rope parameters that do not belong to the rope."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Ministral3ForCausalLM."""
    values = {**DEFAULTS, **values}
    said = Config(values).mapping("rope_parameters") or Config(values).mapping("rope_scaling") or ROPE
    rope = {key: value for key, value in said.items() if key not in OF_QUERIES}
    config = Config(
        {**values, "rope_parameters": rope, "rope_scaling": None, "attention_bias": False, "mlp_bias": False}
    )
    spec = with_sliding(config, gated_decoder("Ministral3ForCausalLM", config))
    return with_mixers(spec, lambda mixer: replace(mixer, growth=growth_of(said, spec.max_positions)))


def growth_of(rope: Mapping[str, Any], positions: int) -> Growth | None:
    """Return the growth of queries from the rope parameters; None if there is none. `positions`: the default of
    original_max_position_embeddings.
    """
    parameters = Config(rope)
    if rope.get("llama_4_scaling_beta") is None:
        return None
    every = parameters.positive("original_max_position_embeddings", int, positions)
    return Growth(parameters.get("llama_4_scaling_beta", float), float(every))
