"""gpt-oss: a sink for each head, windows on every second layer, and mixtures with biases and clamped gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import experts_of, one_of
from plimsoll_runtime.models.families.common.variants import mlp_of, with_mixers, with_mixture, with_windows
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import ClampedGate, Mixture, TopK
from plimsoll_runtime.models.spec.tensor_names import ExpertNames, Names
from plimsoll_runtime.weights.quantisation import MXFP4, quantisation_of

NAMES = Names(
    experts=ExpertNames(
        router="mlp.router",
        gate_up=("mlp.experts.gate_up_proj",),
        down="mlp.experts.down_proj",
        suffix="",
        bias_suffix="_bias",
        transposed=True,
        alternating=True,
    )
)
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
DEFAULTS = {
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
}
"""Defaults of missing fields."""
THETA = 150_000.0


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GptOssForCausalLM. Its experts use clamped gates, independent of `hidden_act`."""
    ropes = {} if values.get("rope_parameters") or values.get("rope_scaling") else {"rope_parameters": YARN}
    config = Config({**DEFAULTS, **values, **ropes, "hidden_act": "silu", "mlp_bias": False})
    spec = gated_decoder("GptOssForCausalLM", config, theta=THETA, names=_names(values))
    spec = with_mixers(spec, lambda mixer: replace(mixer, shape=replace(mixer.shape, sinks=True)))
    slides = ["full_attention" if i % 2 else "sliding_attention" for i in range(spec.num_layers)]
    spec = with_windows(spec, config.windows(slides))
    count = one_of(config, "num_local_experts", "num_experts")
    experts, chosen = experts_of(config, count, "num_experts_per_tok", (128, 4))
    gate = ClampedGate(config.get("swiglu_alpha", float, 1.702), config.get("swiglu_limit", float, 7.0))
    inner = mlp_of(spec).inner
    return with_mixture(spec, Mixture(experts, chosen, inner, TopK(), clamped=gate, bias=True, router_bias=True))


def _names(values: Mapping[str, Any]) -> Names:
    """Return tensor names. MXFP4 stores experts' matrices as [outputs, inputs], because blocks run along inputs."""
    quantisation = quantisation_of(values)
    packed = quantisation is not None and quantisation.method == MXFP4
    return replace(NAMES, experts=replace(NAMES.experts, transposed=False)) if packed else NAMES
