"""Mixtral: Mistral with mixtures instead of MLPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import with_experts
from plimsoll_runtime.models.families.common.variants import with_sliding
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.tensor_names import ExpertNames, Names

NAMES = Names(
    experts=ExpertNames(
        router="block_sparse_moe.gate",
        correction="block_sparse_moe.e_score_correction_bias",
        gate_up=("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
        down="block_sparse_moe.experts.{}.w2",
    )
)
DEFAULTS = {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5}
"""Defaults of missing fields."""
THETA = 1_000_000.0


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of MixtralForCausalLM."""
    config = Config({**DEFAULTS, **values, "attention_bias": False, "mlp_bias": False})
    spec = with_sliding(config, gated_decoder("MixtralForCausalLM", config, theta=THETA, names=NAMES))
    return with_experts(config, spec, "num_local_experts", (8, 2))
