"""Falcon-H1: Mamba 2 parallel to attention on each layer, with multipliers of their inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.bamba import NAMES
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.hybrid import bamba_shape, limits_of, taps_of
from plimsoll_runtime.models.families.common.variants import with_layers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.attention import SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding, LayerSpec, ParallelMixer
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.models.spec.recurrent import Mamba2

DEFAULTS = {"num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of FalconH1ForCausalLM."""
    config = Config({**DEFAULTS, **values})
    spec = gated_decoder("FalconH1ForCausalLM", config, names=NAMES)
    mixer = _mixer(config)

    def changed(layer: LayerSpec) -> LayerSpec:
        assert isinstance(layer.mixer, SelfAttention)
        assert isinstance(layer.mlp, GatedMlp)
        gate, down = _numbers(config, "mlp_multipliers", 2)
        shape = layer.mixer.shape
        # Keys are multiplied after their bias; the factor is applied to scores instead.
        shape = replace(shape, scale=shape.scale * config.get("key_multiplier", float, 1.0))
        both = ParallelMixer(
            replace(layer.mixer, shape=shape),
            mixer,
            config.get("attention_out_multiplier", float, 1.0),
            config.get("ssm_out_multiplier", float, 1.0),
            config.get("attention_in_multiplier", float, 1.0),
        )
        return replace(layer, mixer=both, mlp=replace(layer.mlp, gate_scale=gate, scale=down))

    return replace(
        with_layers(spec, changed),
        embedding=Embedding(scale=config.get("embedding_multiplier", float, 1.0)),
        head=replace(spec.head, scale=config.get("lm_head_multiplier", float, 1.0)),
    )


def _mixer(config: Config) -> Mamba2:
    expanded = config.positive("mamba_expand", int, 2) * config.get("hidden_size", int)
    inner = config.get("mamba_d_ssm", int, expanded if "mamba_d_ssm" in config.values else 1024)
    normed = config.get("mamba_rms_norm", bool, default=False)
    z, x, b, c, dt = _numbers(config, "ssm_multipliers", 5)
    return Mamba2(
        bamba_shape(config, inner),
        taps_of(config, "mamba_d_conv", 4),
        config.get("rms_norm_eps", float) if normed else None,
        config.activation("hidden_act"),
        config.get("mamba_proj_bias", bool, default=False),
        config.get("projectors_bias", bool, default=False),
        config.get("mamba_conv_bias", bool, default=True),
        gate_after=config.get("mamba_norm_before_gate", bool, default=True),
        limits=limits_of(config),
        multipliers=None if {z, x, b, c, dt} == {1.0} else (z, x, b, c, dt),
        input_multiplier=config.get("ssm_in_multiplier", float, 1.0),
    )


def _numbers(config: Config, field: str, count: int) -> tuple[float, ...]:
    found = config.values.get(field) or [1.0] * count
    if not isinstance(found, list) or len(found) != count or not all(type(x) in (int, float) for x in found):
        raise ModelError(f"config.json: {field} is {found!r}; it must be a list of {count} numbers")
    return tuple(map(float, found))
