"""GLM-4-MoE (4.5 and later): half of each head is rotated; experts in groups, chosen by sigmoid scores plus a bias;
a shared expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import experts_of, in_groups
from plimsoll_runtime.models.families.common.variants import with_mixers
from plimsoll_runtime.models.families.deepseek import corrected, guessing, with_routed
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
    "num_nextn_predict_layers": 1,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Glm4MoeForCausalLM. Layers for multi-token prediction, after the others, are not read."""
    config = Config({**DEFAULTS, **values, "mlp_bias": False})
    spec = gated_decoder("Glm4MoeForCausalLM", config, partial=0.5, names=guessing(config))
    norm = HeadNorm(spec.layers[0].norm) if config.get("use_qk_norm", bool, default=False) else None
    spec = with_mixers(spec, lambda mixer: replace(mixer, head_norm=norm, output_bias=False))
    counts = experts_of(config, "n_routed_experts", "num_experts_per_tok", (128, 8))
    return with_routed(config, spec, counts, in_groups(config, *counts, corrected(config)))
