"""Llama 4 (text): chunked attention with RoPE of neighbouring dimensions on most layers, full attention without RoPE on
the others. Routing weights multiply the inputs of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import experts_of
from plimsoll_runtime.models.families.common.variants import mlp_of, self_attention
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.families.smollm3 import turning
from plimsoll_runtime.models.spec.attention import Growth, HeadNorm, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, TopK
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import ExpertNames, Names

NAMES = Names(
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    experts=ExpertNames(
        router="feed_forward.router",
        gate_up=("feed_forward.experts.gate_up_proj",),
        down="feed_forward.experts.down_proj",
        suffix="",
        transposed=True,
        shared_gate_up=("feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj"),
        shared_down="feed_forward.shared_expert.down_proj",
    ),
)
LAYER_TYPES = ("full_attention", "chunked_attention")
DEFAULTS = {
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16_384,
}
"""Defaults of missing fields."""
THETA = 500_000.0


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Llama4ForCausalLM."""
    config = Config({**DEFAULTS, **values, "mlp_bias": False})
    spec = gated_decoder("Llama4ForCausalLM", config, pairs=True, theta=THETA, names=NAMES)
    layers = config.layers()
    turns = turning(config, layers)
    kinds = config.layer_types(["chunked_attention" if t else "full_attention" for t in turns], LAYER_TYPES)
    chunk = config.get("attention_chunk_size", int) if "chunked_attention" in kinds else 0
    shape = spec.attention[0]
    shapes = [replace(shape, chunk=chunk or None) if kind == "chunked_attention" else shape for kind in kinds]
    sparse = _sparse(config, layers)
    mixers = [replace(_mixer(config, spec.layers[0], turns[i]), shape=shapes[i]) for i in range(layers)]
    expert = GatedMlp(config.get("intermediate_size", int), mlp_of(spec).activation)
    mlps = [_mlp(config, expert, is_sparse=i in sparse) for i in range(layers)]
    return replace(
        spec, layers=tuple(replace(spec.layers[0], mixer=m, mlp=f) for m, f in zip(mixers, mlps, strict=True))
    )


def _mixer(config: Config, layer: LayerSpec, turns: bool) -> SelfAttention:
    """Return a layer's attention.

    With RoPE (`turns`), heads are normalised after the rotation. Without, queries are multiplied by a factor that grows
    with their position. The config can disable either.
    """
    if turns:
        normed = config.get("use_qk_norm", bool, default=True)
        norm = HeadNorm(Norm(layer.norm.eps, weighted=False), turned=True) if normed else None
        return replace(self_attention(layer), head_norm=norm)
    growth = None
    if config.values.get("attn_temperature_tuning", True):
        growth = Growth(config.get("attn_scale", float, 0.1), config.positive("floor_scale", float, 8192.0), offset=1)
    return replace(self_attention(layer), rope=None, growth=growth)


def _mlp(config: Config, expert: GatedMlp, *, is_sparse: bool) -> GatedMlp | Mixture:
    """Return a layer's MLP or mixture. Shared experts have the width of the others; MLPs of dense layers are wider."""
    if not is_sparse:
        return replace(expert, inner=config.positive("intermediate_size_mlp", int))
    experts, chosen = experts_of(config, "num_local_experts", "num_experts_per_tok", (16, 1))
    routing = TopK("sigmoid", renormalised=False)
    return Mixture(experts, chosen, expert.inner, routing, expert.activation, expert, weighs_inputs=True)


def _sparse(config: Config, layers: int) -> set[int]:
    """Return the numbers of layers with experts: `moe_layers`, or each interleave_moe_layer_step-th layer."""
    listed = config.values.get("moe_layers")
    if listed is None:
        step = config.positive("interleave_moe_layer_step", int)
        return set(range(step - 1, layers, step))
    if not isinstance(listed, list) or not all(type(i) is int for i in listed):
        raise ModelError(f"config.json: moe_layers is {listed!r}; it must be a list of layer numbers")
    return set(listed)
