"""Mamba, Falcon-Mamba and Mamba 2: convolutions and scans, without attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.hybrid import (
    ENDLESS,
    dual_shape,
    mamba2_mixer,
    mamba_mixer,
    rank_of,
    taps_of,
)
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Head, LayerSpec
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.recurrent import Recurrent
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(
    embedding="backbone.embeddings",
    layer="backbone.layers.{}",
    norms=("norm", "", "", ""),
    final_norm="backbone.norm_f",
)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of MambaForCausalLM."""
    return _decoder("MambaForCausalLM", Config(values), None)


def describe_falcon(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of FalconMambaForCausalLM, which normalises time steps, B and C."""
    config = Config(values)
    norm = Norm(config.get("mixer_rms_eps", float, 1e-6), weighted=False)
    return _decoder("FalconMambaForCausalLM", config, norm)


def scanning(architecture: str, config: Config, mixer: Recurrent, *, tied: bool) -> DecoderSpec:
    """Return a decoder whose layers are a norm and a recurrent mixer, without MLP."""
    norm = Norm(config.get("layer_norm_epsilon", float, 1e-5))
    return DecoderSpec(
        architecture,
        vocab_size=config.get("vocab_size", int),
        hidden_size=config.get("hidden_size", int),
        layers=(LayerSpec(mixer, None, norm),) * config.layers(),
        max_positions=ENDLESS,
        final_norm=norm,
        head=Head(tied=config.get("tie_word_embeddings", bool, default=tied)),
        names=NAMES,
    )


def _decoder(architecture: str, config: Config, norm: Norm | None) -> DecoderSpec:
    hidden = config.get("hidden_size", int)
    mixer = mamba_mixer(
        config,
        inner=config.get("intermediate_size", int, int(config.get("expand", float, 2.0) * hidden)),
        state=config.get("state_size", int, 16),
        rank=rank_of(config, "time_step_rank"),
        taps=taps_of(config, "conv_kernel", 4),
        norm=norm,
    )
    mixer = replace(
        mixer,
        bias=config.get("use_bias", bool, default=False),
        conv_bias=config.get("use_conv_bias", bool, default=True),
    )
    return scanning(architecture, config, mixer, tied=True)


def describe_v2(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Mamba2ForCausalLM."""
    config = Config(values)
    shape = dual_shape(
        config,
        config.get("num_heads", int, 128),
        config.get("head_dim", int, 64),
        config.get("n_groups", int, 8),
        config.get("state_size", int, 128),
    )
    eps, activation = config.get("layer_norm_epsilon", float, 1e-5), config.activation("hidden_act", "silu")
    return scanning("Mamba2ForCausalLM", config, mamba2_mixer(config, shape, eps, activation), tied=False)
