"""Gemma 4 (text): larger heads in full-attention layers, shared keys, per-layer inputs, mixtures parallel to MLPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError, UnsupportedFieldError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import experts_of
from plimsoll_runtime.models.families.gemma3 import (
    FULL,
    GLOBAL_THETA,
    LOCAL_THETA,
    SLIDING,
    decoder_of,
    owners_of,
    unread,
)
from plimsoll_runtime.models.families.gemma3 import NAMES as GEMMA3
from plimsoll_runtime.models.spec.attention import AttentionShape, HeadNorm, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, LayerSpec, TokenInputs
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, MixtureBeside, TopK
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import ExpertNames

ROPES = {SLIDING: {"rope_type": "default"}, FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25}}
THETAS = {SLIDING: LOCAL_THETA, FULL: GLOBAL_THETA}
DEFAULTS = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 512,
    "max_position_embeddings": 131_072,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
}
UNIFIED = {"sliding_window": 1024, "max_position_embeddings": 262_144}
"""Defaults of missing fields."""
NAMES = replace(
    GEMMA3,
    experts=ExpertNames(
        router="router.proj",
        gate_up=("experts.gate_up_proj",),
        down="experts.down_proj",
        suffix="",
        scales="router.per_expert_scale",
    ),
)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Gemma4ForCausalLM."""
    return _decoder("Gemma4ForCausalLM", Config({**DEFAULTS, **values}))


def describe_unified(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Gemma4UnifiedForCausalLM, which has neither per-layer inputs nor mixtures."""
    neither = {"hidden_size_per_layer_input": None, "enable_moe_block": False}
    return _decoder("Gemma4UnifiedForCausalLM", Config({**DEFAULTS, **UNIFIED, **values, **neither}))


def _decoder(architecture: str, config: Config) -> DecoderSpec:
    config.refuse_unless(use_bidirectional_attention="vision")
    kinds = config.layer_types([SLIDING if (i + 1) % 6 else FULL for i in range(config.layers())])
    # Transformers makes the last layer full attention, whatever the config says.
    kinds[-1] = FULL
    owners = owners_of(config, kinds, 0)
    norm = Norm(config.get("rms_norm_eps", float, 1e-6))
    width = config.get("hidden_size_per_layer_input", int, 0)
    layers = [
        LayerSpec(mixer, _mlp(config, shares=mixer.shares is not None), norm, after=True, scalar=True)
        for mixer in _mixers(config, kinds, owners, norm)
    ]
    inputs = TokenInputs(
        config.positive("vocab_size_per_layer_input", int), width, norm, config.activation("hidden_activation")
    )
    names = replace(NAMES, ignored=(*NAMES.ignored, *unread(owners)))
    return replace(decoder_of(architecture, config, layers, norm, names), inputs=inputs if width else None)


def _mixers(config: Config, kinds: Sequence[str], owners: Sequence[int | None], norm: Norm) -> list[SelfAttention]:
    shapes = _shapes(config, kinds)
    bias = config.get("attention_bias", bool, default=False)
    alike = config.get("attention_k_eq_v", bool, default=False)
    ropes = Config({**config.values, "rope_parameters": config.mapping("rope_parameters") or ROPES})
    mixers = []
    for number, (kind, owner, shape) in enumerate(zip(kinds, owners, shapes, strict=True)):
        if owner is not None and shapes[owner] != shape:
            raise ModelError(f"config.json: layer {number} shares the keys of layer {owner}, whose heads differ")
        rope = ropes.rope_of_type(kind, shape.head_dim, THETAS[kind], scaled=False)
        mixer = SelfAttention(shape, rope, HeadNorm(norm), bias, bias, value_norm=replace(norm, weighted=False))
        mixers.append(replace(mixer, values_of_keys=alike and kind == FULL and owner is None, shares=owner))
    return mixers


def _shapes(config: Config, kinds: Sequence[str]) -> list[AttentionShape]:
    """Return the shape of each layer, from per_layer_config or from the global_ fields of full-attention layers."""
    own = config.values.get("per_layer_config")
    of_layers = _of_full(config, kinds) if own is None else config.mapping("per_layer_config")
    if unknown := sorted(set(of_layers) - {str(number) for number in range(len(kinds))}):
        raise ModelError(f"config.json: per_layer_config has {unknown[0]!r}, which is not a layer number")
    shapes = []
    for number, kind in enumerate(kinds):
        changed = Config(of_layers).mapping(str(number))
        if others := sorted(set(changed) - {"head_dim", "num_key_value_heads"}):
            raise UnsupportedFieldError(f"config.json: per_layer_config has the unsupported field {others[0]!r}")
        heads, kv_heads, head_dim = Config({**config.values, **changed}).heads()
        window = config.positive("sliding_window", int) if kind == SLIDING else None
        shapes.append(AttentionShape(heads, kv_heads, head_dim, 1.0, window))
    return shapes


def _of_full(config: Config, kinds: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return, by number of each full-attention layer, the config fields whose values differ there from other layers."""
    found = {"head_dim": config.get("global_head_dim", int, 512)}
    if config.get("attention_k_eq_v", bool, default=False) and config.values.get("num_global_key_value_heads"):
        found["num_key_value_heads"] = config.get("num_global_key_value_heads", int)
    return {str(number): found for number, kind in enumerate(kinds) if kind == FULL}


def _mlp(config: Config, *, shares: bool) -> GatedMlp | MixtureBeside:
    wide = shares and config.get("use_double_wide_mlp", bool, default=False)
    inner = config.get("intermediate_size", int) * (2 if wide else 1)
    mlp = GatedMlp(inner, config.activation("hidden_activation"))
    if not config.get("enable_moe_block", bool, default=False):
        return mlp
    experts, chosen = experts_of(config, "num_experts", "top_k_experts", (0, 0))
    size = config.positive("moe_intermediate_size", int)
    return MixtureBeside(mlp, Mixture(experts, chosen, size, TopK(scaled_each=True), mlp.activation))
