"""Hunyuan, dense and MoE: Llama with norms over heads of queries and keys after rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import check_experts
from plimsoll_runtime.models.families.common.variants import mlp_of, with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, TopK
from plimsoll_runtime.models.spec.tensor_names import ExpertNames, Names

NAMES = Names(head_norms=("self_attn.query_layernorm", "self_attn.key_layernorm"))
DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "mlp_bias": False}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of HunYuanDenseV1ForCausalLM."""
    spec = gated_decoder("HunYuanDenseV1ForCausalLM", Config({**DEFAULTS, **values}), names=NAMES)
    norm = HeadNorm(spec.layers[0].norm, turned=True)
    return with_mixers(spec, lambda mixer: replace(mixer, head_norm=norm))


EXPERTS = ExpertNames(
    router="mlp.gate.wg",
    shared_gate_up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
    shared_down="mlp.shared_mlp.down_proj",
)


def describe_moe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of HunYuanMoEV1ForCausalLM."""
    config = Config(values)
    config.refuse_unless(use_cla=False)
    spec = describe({**values, "mlp_bias": False})
    mlp = mlp_of(spec)
    shared = GatedMlp(mlp.inner, mlp.activation)
    experts = config.get("num_experts", int, 1)
    layers = []
    for layer, chosen in zip(spec.layers, _chosen(config, spec.num_layers), strict=True):
        check_experts(config, experts, chosen)
        layers.append(replace(layer, mlp=Mixture(experts, chosen, mlp.inner, TopK(), mlp.activation, shared)))
    names = replace(spec.names, experts=EXPERTS)
    return replace(spec, architecture="HunYuanMoEV1ForCausalLM", layers=tuple(layers), names=names)


def _chosen(config: Config, layers: int) -> list[int]:
    """Return for each layer the number of experts that a token uses. The config has one number or a list."""
    listed = config.values.get("moe_topk")
    if not isinstance(listed, list):
        return [config.get("moe_topk", int, 1)] * layers
    if len(listed) != layers or not all(type(each) is int for each in listed):
        raise ModelError(f"config.json: moe_topk is {listed!r}; it must have a number for each of {layers} layers")
    return listed
