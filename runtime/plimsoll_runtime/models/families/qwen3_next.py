"""Qwen3-Next and Qwen3.5: gated delta rules on most layers, gated attention on every fourth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.hybrid import kinds, taps_of, with_kinds
from plimsoll_runtime.models.families.common.moe import every_step, experts_of
from plimsoll_runtime.models.families.common.variants import mlp_of, with_mixers, with_mixture
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, TopK
from plimsoll_runtime.models.spec.recurrent import DeltaShape, GatedDelta
from plimsoll_runtime.models.spec.tensor_names import Names

DEFAULTS = {"head_dim": 256, "max_position_embeddings": 32_768}
"""Defaults of missing fields."""
_OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Rope parameters for images; for text, all three positions of a token are equal."""
NAMES = Names(recurrent="linear_attn", beyond=("mtp.", "model.mtp."))


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Qwen3NextForCausalLM."""
    config = Config({**DEFAULTS, "num_key_value_heads": 2, "intermediate_size": 5632, **values, "mlp_bias": False})
    spec = _decoder("Qwen3NextForCausalLM", config, by_key_head=True)
    renormalised = config.get("norm_topk_prob", bool, default=True)
    return with_mixture(spec, _mixture(config, spec, renormalised, (512, 10)), every_step(config))


def describe_dense(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Qwen3_5ForCausalLM."""
    return _decoder("Qwen3_5ForCausalLM", Config({**DEFAULTS, "num_key_value_heads": 4, **values, "mlp_bias": False}))


def describe_moe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Qwen3_5MoeForCausalLM, whose layers all have experts."""
    config = Config({**DEFAULTS, "num_key_value_heads": 2, "intermediate_size": 1, **values, "mlp_bias": False})
    spec = _decoder("Qwen3_5MoeForCausalLM", config)
    return with_mixture(spec, _mixture(config, spec, renormalised=True, default=(256, 8)))


def _mixture(config: Config, spec: DecoderSpec, renormalised: bool, default: tuple[int, int]) -> Mixture:
    activation = mlp_of(spec).activation
    return Mixture(
        *experts_of(config, "num_experts", "num_experts_per_tok", default),
        config.positive("moe_intermediate_size", int, 512),
        TopK(renormalised=renormalised),
        activation,
        shared=GatedMlp(config.positive("shared_expert_intermediate_size", int, 512), activation),
        shared_gated=True,
    )


def _decoder(architecture: str, config: Config, *, by_key_head: bool = False) -> DecoderSpec:
    ropes = {k: v for k, v in config.mapping("rope_parameters").items() if k not in _OF_IMAGES}
    config = Config({**config.values, "rope_parameters": ropes})
    spec = gated_decoder(architecture, config, partial=0.25, norm_offset=1.0, names=NAMES)
    norm = spec.layers[0].norm
    spec = with_mixers(spec, lambda mixer: replace(mixer, head_norm=HeadNorm(norm), gated=True))
    every = config.positive("full_attention_interval", int, 4)
    default = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(spec.num_layers)]
    types = kinds(config, "layer_types", default, ("full_attention", "linear_attention"))
    shape = _shape(config)
    activation = config.activation("hidden_act", "silu")
    delta = GatedDelta(shape, taps_of(config, "linear_conv_kernel_dim", 4), norm.eps, activation, by_key_head)
    return with_kinds(spec, types, delta)


def _shape(config: Config) -> DeltaShape:
    shape = DeltaShape(
        config.positive("linear_num_key_heads", int, 16),
        config.positive("linear_num_value_heads", int, 32),
        config.positive("linear_key_head_dim", int, 128),
        config.positive("linear_value_head_dim", int, 128),
    )
    if shape.value_heads % shape.key_heads:
        raise ModelError(
            f"config.json: linear_num_value_heads {shape.value_heads} is not a multiple of the {shape.key_heads} key "
            "heads"
        )
    return shape
