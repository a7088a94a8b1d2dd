"""DeepSeek V2 and V3 (and Kimi K2, which is V3): latent attention, grouped mixtures, and shared experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.mla import latent_decoder
from plimsoll_runtime.models.families.common.moe import experts_of, in_groups
from plimsoll_runtime.models.families.common.variants import with_mixture
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, TopK
from plimsoll_runtime.models.spec.tensor_names import ExpertNames, Names

EXPERTS = ExpertNames(
    shared_gate_up=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    shared_down="mlp.shared_experts.down_proj",
)
V2 = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
    "topk_method": "greedy",
}
V3 = {
    **V2,
    "max_position_embeddings": 4096,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
}
"""Defaults of missing fields."""


def describe_v2(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of DeepseekV2ForCausalLM.

    A group's score is that of its best expert. The rope rotates pairs of neighbouring dimensions.
    """
    config = Config({**V2, **values})
    config.refuse_unless(scoring_func="softmax", moe_layer_freq=1, norm_topk_prob=False)
    spec = latent_decoder("DeepseekV2ForCausalLM", config.values, names=Names(experts=EXPERTS), pairs=True)
    counts = experts_of(config, "n_routed_experts", "num_experts_per_tok", (64, 0))
    routing = TopK(renormalised=False, best=1, scale=config.get("routed_scaling_factor", float))
    if config.values["topk_method"] == "group_limited_greedy":
        routing = in_groups(config, *counts, routing)
    else:
        config.refuse_unless(topk_method="greedy")
    return with_routed(config, spec, counts, routing)


def describe_v3(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of DeepseekV3ForCausalLM. Layers for multi-token prediction, after the others, are not read."""
    config = Config({**V3, **values, "mlp_bias": False})
    config.refuse_unless(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    spec = latent_decoder("DeepseekV3ForCausalLM", config.values, names=guessing(config))
    counts = experts_of(config, "n_routed_experts", "num_experts_per_tok", (256, 8))
    return with_routed(config, spec, counts, in_groups(config, *counts, corrected(config)))


def corrected(config: Config) -> TopK:
    """Return V3's routing: sigmoid scores with a bias for the choice of experts."""
    return TopK(
        "sigmoid",
        renormalised=config.get("norm_topk_prob", bool, default=True),
        corrected=True,
        least=1e-20,
        scale=config.get("routed_scaling_factor", float),
    )


def guessing(config: Config) -> Names:
    """Return DeepSeek's tensor names; the tensors of layers for multi-token prediction are not read."""
    layers, more = config.layers(), config.get("num_nextn_predict_layers", int, 0)
    beyond = tuple(f"model.layers.{layers + i}." for i in range(min(more, layers)))
    return Names(experts=EXPERTS, beyond=beyond)


def with_routed(config: Config, spec: DecoderSpec, counts: tuple[int, int], routing: TopK) -> DecoderSpec:
    """Return a spec with mixtures from the layer first_k_dense_replace on."""
    dense = config.get("first_k_dense_replace", int)
    return with_mixture(spec, mixture_of(config, counts, routing), lambda number: number >= dense)


def mixture_of(config: Config, counts: tuple[int, int], routing: TopK) -> Mixture:
    """Return a mixture with `counts` (experts, experts for each token), and n_shared_experts merged into one MLP."""
    inner, activation = config.positive("moe_intermediate_size", int), config.activation("hidden_act", "silu")
    shared = config.get("n_shared_experts", int) * inner
    beside = GatedMlp(shared, activation, config.get("mlp_bias", bool, default=False)) if shared else None
    return Mixture(*counts, inner, routing, activation, beside)
