"""GLM-4-MoE (4.5 and later): half of each head is rotated; grouped, corrected sigmoid scores; a shared expert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import experts_of, in_groups
from plimsoll_runtime.models.families.common.variants import mlp_of, with_mixers, with_mixture
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, TopK
from plimsoll_runtime.models.spec.tensor_names import ExpertNames, Names

EXPERTS = ExpertNames(
    shared_gate_up=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    shared_down="mlp.shared_experts.down_proj",
)
DEFAULTS = {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "mlp_bias": False}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Glm4MoeForCausalLM. Layers for multi-token prediction, after the others, are not read."""
    config = Config({**DEFAULTS, **values})
    layers, guessing = config.layers(), config.get("num_nextn_predict_layers", int, 1)
    names = Names(experts=EXPERTS, beyond=tuple(f"model.layers.{layers + i}." for i in range(min(guessing, layers))))
    spec = gated_decoder("Glm4MoeForCausalLM", config, partial=0.5, names=names)
    norm = HeadNorm(spec.layers[0].norm) if config.get("use_qk_norm", bool, default=False) else None
    spec = with_mixers(spec, lambda mixer: replace(mixer, head_norm=norm, output_bias=False))
    activation, inner = mlp_of(spec).activation, config.positive("moe_intermediate_size", int, 1408)
    experts, chosen = experts_of(config, "n_routed_experts", "num_experts_per_tok", (128, 8))
    shared = config.get("n_shared_experts", int, 1) * inner
    routing = in_groups(
        config,
        experts,
        chosen,
        TopK(
            "sigmoid",
            renormalised=config.get("norm_topk_prob", bool, default=True),
            corrected=True,
            least=1e-20,
            scale=config.get("routed_scaling_factor", float, 1.0),
        ),
    )
    beside = GatedMlp(shared, activation) if shared else None
    dense = config.get("first_k_dense_replace", int, 1)
    mixture = Mixture(experts, chosen, inner, routing, activation, beside)
    return with_mixture(spec, mixture, lambda number: number >= dense)
