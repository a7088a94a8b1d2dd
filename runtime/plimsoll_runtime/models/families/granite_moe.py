"""Granite-MoE: Granite with mixtures, whose files have all experts of a layer in one; and with an MLP beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.changing import mlp_of, with_mixture
from plimsoll_runtime.models.families.granite import scaled
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.families.mixing import experts_of
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture
from plimsoll_runtime.models.spec.names import ExpertNames, Names
from plimsoll_runtime.models.spec.routing import TopK

NAMES = Names(
    experts=ExpertNames(
        router="block_sparse_moe.router.layer",
        gate_up=("block_sparse_moe.input_linear",),
        down="block_sparse_moe.output_linear",
        shared_gate_up=("shared_mlp.input_linear",),
        shared_down="shared_mlp.output_linear",
    )
)


def describe_moe(values: Mapping[str, Any]) -> DecoderSpec:
    """GraniteMoeForCausalLM."""
    return _decoder("GraniteMoeForCausalLM", Config({**values, "mlp_bias": False}), 0)


def describe_shared(values: Mapping[str, Any]) -> DecoderSpec:
    """GraniteMoeSharedForCausalLM."""
    config = Config({**values, "mlp_bias": False})
    return _decoder("GraniteMoeSharedForCausalLM", config, config.get("shared_intermediate_size", int, 0))


def _decoder(architecture: str, config: Config, shared: int) -> DecoderSpec:
    spec = scaled(config, gated_decoder(architecture, config, names=NAMES))
    mlp = mlp_of(spec)
    experts, chosen = experts_of(config, "num_local_experts", "num_experts_per_tok", (8, 2))
    beside = GatedMlp(shared, mlp.activation) if shared else None
    return with_mixture(spec, Mixture(experts, chosen, mlp.inner, TopK(), mlp.activation, beside))
