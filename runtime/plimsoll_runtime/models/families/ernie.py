"""ERNIE 4.5: Llama with RoPE of neighbouring dimensions and optional biases.

The MoE variant has mixtures instead of MLPs, by default in all layers except the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import experts_of
from plimsoll_runtime.models.families.common.variants import mlp_of, with_mixture
from plimsoll_runtime.models.families.deepseek import EXPERTS
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, TopK
from plimsoll_runtime.models.spec.tensor_names import Names

DEFAULTS = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "use_bias": False,
}
"""Defaults of missing fields."""
THETA = 500_000.0


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Ernie4_5ForCausalLM."""
    values = {**DEFAULTS, **values}
    config = Config({**values, "attention_bias": values["use_bias"], "mlp_bias": values["use_bias"]})
    return gated_decoder("Ernie4_5ForCausalLM", config, pairs=True, theta=THETA)


NAMES = Names(
    experts=replace(EXPERTS, correction="mlp.moe_statics.e_score_correction_bias", correction_is_row=True),
    beyond=("model.mtp_",),
)
MOE_DEFAULTS = {
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_interval": 1,
}
"""Defaults of missing fields."""


def describe_moe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Ernie4_5_MoeForCausalLM."""
    values = {**MOE_DEFAULTS, **values}
    bias = Config(values).get("use_bias", bool, default=False)
    config = Config({**values, "attention_bias": bias, "mlp_bias": bias})
    spec = gated_decoder("Ernie4_5_MoeForCausalLM", config, pairs=True, theta=THETA, names=NAMES)
    activation, inner = mlp_of(spec).activation, config.positive("moe_intermediate_size", int, 1536)
    experts, chosen = experts_of(config, "moe_num_experts", "moe_k", (64, 6))
    shared = config.get("moe_num_shared_experts", int) * inner
    beside = GatedMlp(shared, activation, bias) if shared else None
    routing = TopK(corrected=True, least=config.get("moe_norm_min", float, 1e-12))
    first, step = config.get("moe_layer_start_index", int), config.positive("moe_layer_interval", int)
    last = (
        spec.num_layers if values.get("moe_layer_end_index") in (None, -1) else config.get("moe_layer_end_index", int)
    )
    spec = replace(spec, head=replace(spec.head, bias=bias))
    mixture = Mixture(experts, chosen, inner, routing, activation, beside)
    return with_mixture(spec, mixture, lambda number: first <= number <= last and (number + 1) % step == 0)
