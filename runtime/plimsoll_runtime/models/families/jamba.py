"""Jamba: Mamba on most layers, attention without positions on some, and experts on every second layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.bamba import NAMES as BAMBA
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.hybrid import mamba_mixer, rank_of, taps_of, with_kinds
from plimsoll_runtime.models.families.common.moe import experts_of
from plimsoll_runtime.models.families.common.variants import mlp_of, with_mixers, with_mixture
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import Mixture, TopK
from plimsoll_runtime.models.spec.tensor_names import ExpertNames

DEFAULTS = {"num_key_value_heads": 8, "max_position_embeddings": 262_144, "intermediate_size": 14_336}
"""Defaults of missing fields."""
NAMES = replace(
    BAMBA,
    experts=ExpertNames(
        router="feed_forward.router",
        gate_up=("feed_forward.experts.{}.gate_proj", "feed_forward.experts.{}.up_proj"),
        down="feed_forward.experts.{}.down_proj",
    ),
)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of JambaForCausalLM."""
    config = Config({**DEFAULTS, **values, "mlp_bias": False, "attention_bias": False})
    spec = with_mixers(gated_decoder("JambaForCausalLM", config, names=NAMES), lambda mixer: replace(mixer, rope=None))
    mixer = mamba_mixer(
        config,
        inner=config.positive("mamba_expand", int, 2) * spec.hidden_size,
        state=config.get("mamba_d_state", int, 16),
        rank=rank_of(config, "mamba_dt_rank"),
        taps=taps_of(config, "mamba_d_conv", 4),
        norm=spec.layers[0].norm,
    )
    mixer = replace(
        mixer,
        bias=config.get("mamba_proj_bias", bool, default=False),
        conv_bias=config.get("mamba_conv_bias", bool, default=True),
    )
    every, first = config.positive("attn_layer_period", int, 8), config.get("attn_layer_offset", int, 4)
    kinds = ["full_attention" if i % every == first else "linear_attention" for i in range(spec.num_layers)]
    spec = with_kinds(spec, kinds, mixer)
    if config.get("num_experts", int, 16) == 1:
        return spec
    experts, chosen = experts_of(config, "num_experts", "num_experts_per_tok", (16, 2))
    mlp = mlp_of(spec)
    period, offset = config.positive("expert_layer_period", int, 2), config.get("expert_layer_offset", int, 1)
    mixture = Mixture(experts, chosen, config.get("intermediate_size", int), TopK(renormalised=False), mlp.activation)
    return with_mixture(spec, mixture, lambda index: index % period == offset)
