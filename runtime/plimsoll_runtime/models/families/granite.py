"""Granite and Granite-MoE: Llama with factors of embeddings, scores, residuals and logits.

Files of mixtures store all experts of a layer in one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import experts_of
from plimsoll_runtime.models.families.common.variants import mlp_of, with_layers, with_mixers, with_mixture
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, TopK
from plimsoll_runtime.models.spec.tensor_names import ExpertNames, Names


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GraniteForCausalLM."""
    config = Config(values)
    return scaled(config, gated_decoder("GraniteForCausalLM", config))


def scaled(config: Config, spec: DecoderSpec) -> DecoderSpec:
    """Return a spec with Granite's factors of embeddings, scores, residuals and logits."""
    scale = config.positive("attention_multiplier", float, 1.0)
    residual = config.get("residual_multiplier", float, 1.0)
    mixers = with_mixers(spec, lambda mixer: replace(mixer, shape=replace(mixer.shape, scale=scale)))
    return replace(
        with_layers(mixers, lambda layer: replace(layer, scale=residual)),
        embedding=Embedding(scale=config.get("embedding_multiplier", float, 1.0)),
        head=replace(spec.head, scale=1.0 / config.positive("logits_scaling", float, 1.0)),
    )


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
    """Return the spec of GraniteMoeForCausalLM."""
    return _decoder("GraniteMoeForCausalLM", Config({**values, "mlp_bias": False}), 0)


def describe_shared(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GraniteMoeSharedForCausalLM."""
    config = Config({**values, "mlp_bias": False})
    return _decoder("GraniteMoeSharedForCausalLM", config, config.get("shared_intermediate_size", int, 0))


def _decoder(architecture: str, config: Config, shared: int) -> DecoderSpec:
    spec = scaled(config, gated_decoder(architecture, config, names=NAMES))
    mlp = mlp_of(spec)
    experts, chosen = experts_of(config, "num_local_experts", "num_experts_per_tok", (8, 2))
    beside = GatedMlp(shared, mlp.activation) if shared else None
    return with_mixture(spec, Mixture(experts, chosen, mlp.inner, TopK(), mlp.activation, beside))
