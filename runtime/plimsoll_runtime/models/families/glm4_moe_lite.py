"""GLM-4-MoE lite (4.7 flash): DeepSeek V3 with a list of the layers that are mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.mla import latent_decoder
from plimsoll_runtime.models.families.common.moe import experts_of, in_groups
from plimsoll_runtime.models.families.common.variants import with_mixture
from plimsoll_runtime.models.families.deepseek import corrected, guessing, mixture_of
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {
    "kv_lora_rank": 512,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1536,
    "routed_scaling_factor": 1.8,
    "max_position_embeddings": 202_752,
    "rms_norm_eps": 1e-5,
    "num_nextn_predict_layers": 1,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Glm4MoeLiteForCausalLM."""
    config = Config({**DEFAULTS, **values, "mlp_bias": False})
    spec = latent_decoder("Glm4MoeLiteForCausalLM", config.values, names=guessing(config))
    counts = experts_of(config, "n_routed_experts", "num_experts_per_tok", (64, 4))
    kinds = config.values.get("mlp_layer_types") or ["dense"] + ["sparse"] * (spec.num_layers - 1)
    if not isinstance(kinds, list) or len(kinds) != spec.num_layers or not set(map(str, kinds)) <= {"dense", "sparse"}:
        raise ModelError(f"config.json: mlp_layer_types must have dense or sparse for each of {spec.num_layers} layers")
    mixture = mixture_of(config, counts, in_groups(config, *counts, corrected(config)))
    return with_mixture(spec, mixture, lambda number: kinds[number] == "sparse")
