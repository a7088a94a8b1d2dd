"""Gemma 3n (text): streams of hidden states, per-layer inputs, sparse gates, and shared keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config, T, typed
from plimsoll_runtime.models.families.gemma3 import FULL, NAMES, SLIDING, decoder_of, owners_of, ropes_of, unread
from plimsoll_runtime.models.spec.attention import AttentionShape, HeadNorm, SelfAttention
from plimsoll_runtime.models.spec.decoder import AltUp, DecoderSpec, LayerSpec, TokenInputs
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.models.spec.norm import Norm

DEFAULTS = {
    "vocab_size": 262_400,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 512,
    "max_position_embeddings": 32_768,
    "final_logit_softcapping": 30.0,
}
"""Defaults of missing fields."""
SPARSE_LAYERS, SPARSITY = 10, 0.95
"""Default of activation_sparsity_pattern: SPARSITY in the first SPARSE_LAYERS layers, if there are more layers than
that.
"""
MAX_STREAMS = 64
"""Most streams: no model has more; a larger number means a damaged config."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Gemma3nForCausalLM."""
    config = Config({**DEFAULTS, **values})
    config.refuse_unless(use_bidirectional_attention=False)
    kinds = config.layer_types([FULL if (i + 1) % 5 == 0 else SLIDING for i in range(config.layers())])
    owners = owners_of(config, kinds, 15)
    norm = Norm(config.get("rms_norm_eps", float, 1e-6))
    mixers = _mixers(config, norm)
    mlps = _mlps(config)
    rank = config.positive("laurel_rank", int, 64)
    layers = [
        LayerSpec(replace(mixers[kind], shares=owner), mlp, norm, after=True, laurel=rank)
        for kind, owner, mlp in zip(kinds, owners, mlps, strict=True)
    ]
    scaled = config.get("altup_correct_scale", bool, default=True)
    unscaled = () if scaled else (".altup.correct_output_scale",)
    names = replace(NAMES, ignored=(*NAMES.ignored, *unread(owners), *unscaled))
    return replace(
        decoder_of("Gemma3nForCausalLM", config, layers, norm, names),
        inputs=TokenInputs(
            config.positive("vocab_size_per_layer_input", int, 262_144),
            config.positive("hidden_size_per_layer_input", int, 256),
            norm,
            config.activation("hidden_activation"),
        ),
        altup=_altup(config, norm, scaled=scaled),
    )


def _mixers(config: Config, norm: Norm) -> dict[str, SelfAttention]:
    """Return the attention of each layer type."""
    heads, kv_heads, head_dim = config.heads()
    full = AttentionShape(heads, kv_heads, head_dim, 1.0)
    shapes = {FULL: full, SLIDING: replace(full, window=config.positive("sliding_window", int))}
    bias, values = config.get("attention_bias", bool, default=False), replace(norm, weighted=False)
    return {
        kind: SelfAttention(shapes[kind], rope, HeadNorm(norm), bias, bias, value_norm=values)
        for kind, rope in ropes_of(config, head_dim).items()
    }


def _mlps(config: Config) -> list[GatedMlp]:
    count, activation = config.layers(), config.activation("hidden_activation")
    sparse = SPARSE_LAYERS if count > SPARSE_LAYERS else 0
    sparsity = _of_layers(config, "activation_sparsity_pattern", float, [SPARSITY] * sparse + [0.0] * (count - sparse))
    if too_much := [share for share in sparsity if share >= 1]:
        raise ModelError(f"config.json: activation_sparsity_pattern has {too_much[0]}; values must be below 1")
    inner = config.values.get("intermediate_size")
    sizes = _of_layers(config, "intermediate_size", int, [0] * count) if isinstance(inner, list) else None
    return [
        GatedMlp(config.get("intermediate_size", int) if sizes is None else sizes[number], activation, sparsity=share)
        for number, share in enumerate(sparsity)
    ]


def _of_layers(config: Config, field: str, kind: type[T], default: list[T]) -> list[T]:
    """Return a list field with one value for each layer; `default` if it is missing."""
    found = config.values.get(field)
    if found is None:
        return default
    if not isinstance(found, list) or len(found) != config.layers():
        raise ModelError(
            f"config.json: {field} is {found!r}; it must have a value for each of {config.layers()} layers"
        )
    return [typed({field: each}, field, kind, None) for each in found]


def _altup(config: Config, norm: Norm, *, scaled: bool) -> AltUp:
    streams, active = config.get("altup_num_inputs", int, 4), config.get("altup_active_idx", int, 0)
    if not 2 <= streams <= MAX_STREAMS or active >= streams:
        raise ModelError(
            f"config.json: altup_num_inputs is {streams}; it must be from 2 to {MAX_STREAMS}, and altup_active_idx "
            f"{active} below it"
        )
    return AltUp(streams, active, norm, scaled)
