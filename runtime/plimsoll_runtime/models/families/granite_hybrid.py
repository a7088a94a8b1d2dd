"""Granite 4: Mamba 2 on most layers, attention on some; each layer has an MLP, and in some models experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.hybrid import bamba_mixer, kinds, with_kinds
from plimsoll_runtime.models.families.common.moe import experts_of
from plimsoll_runtime.models.families.common.variants import mlp_of, with_mixers, with_mixture
from plimsoll_runtime.models.families.granite import NAMES, scaled
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, TopK

HYBRID = replace(NAMES, gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear", recurrent="mamba")


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GraniteMoeHybridForCausalLM. Heads are rotated only if position_embedding_type is rope."""
    config = Config({**values, "mlp_bias": False})
    shared = config.positive("shared_intermediate_size", int, 1024)
    spec = gated_decoder(
        "GraniteMoeHybridForCausalLM", Config({**config.values, "intermediate_size": shared}), names=HYBRID
    )
    if config.values.get("position_embedding_type") != "rope":
        spec = with_mixers(spec, lambda mixer: replace(mixer, rope=None))
    spec = scaled(config, spec)
    default = ["linear_attention"] * spec.num_layers
    field = "layers_block_type" if config.values.get("layers_block_type") else "layer_types"
    found = kinds(config, field, default, ("full_attention", "linear_attention"))
    spec = with_kinds(spec, found, bamba_mixer(config))
    if config.values.get("num_local_experts") == 0:
        return spec
    experts, chosen = experts_of(config, "num_local_experts", "num_experts_per_tok", (8, 2))
    activation, inner = mlp_of(spec).activation, config.positive("intermediate_size", int, 11_008)
    return with_mixture(spec, Mixture(experts, chosen, inner, TopK(), activation, GatedMlp(shared, activation)))
