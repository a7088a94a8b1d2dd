"""Mistral 4: DeepSeek's latent attention, mixtures with softmax scores, and queries that grow with their position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.mla import latent_decoder
from plimsoll_runtime.models.families.common.moe import experts_of, in_groups
from plimsoll_runtime.models.families.deepseek import EXPERTS, with_routed
from plimsoll_runtime.models.families.ministral3 import OF_QUERIES, ROPE, growth_of
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import TopK
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(experts=replace(EXPERTS, gate_up=("mlp.experts.gate_up_proj",), down="mlp.experts.down_proj", suffix=""))
MISTRAL4_ROPE = {**ROPE, "rope_theta": 10_000.0, "factor": 128.0, "original_max_position_embeddings": 8192}
DEFAULTS = {
    "kv_lora_rank": 256,
    "q_lora_rank": 1024,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
    "max_position_embeddings": 1_048_576,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Mistral4ForCausalLM."""
    given = Config({**DEFAULTS, **values})
    said = given.mapping("rope_parameters") or given.mapping("rope_scaling") or MISTRAL4_ROPE
    plain, turned = (given.positive(field, int) for field in ("qk_nope_head_dim", "qk_rope_head_dim"))
    part = turned / (plain + turned)
    Config(said).refuse_unless(partial_rotary_factor=part)
    rope = {key: value for key, value in said.items() if key not in (*OF_QUERIES, "partial_rotary_factor")}
    config = Config({**given.values, "rope_parameters": rope, "rope_scaling": None, "mlp_bias": False})
    growth = growth_of(said, config.positive("max_position_embeddings", int))
    spec = latent_decoder("Mistral4ForCausalLM", config.values, names=NAMES, growth=growth)
    counts = experts_of(config, "n_routed_experts", "num_experts_per_tok", (128, 4))
    routing = TopK(
        renormalised=config.get("norm_topk_prob", bool, default=True),
        least=1e-20,
        scale=config.get("routed_scaling_factor", float),
    )
    return with_routed(config, spec, counts, in_groups(config, *counts, routing))
