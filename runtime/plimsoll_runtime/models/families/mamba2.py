"""Mamba 2: convolutions and scans of heads, and no attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.hybrids import dual_shape, limits_of, taps_of
from plimsoll_runtime.models.families.mamba import scanning
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.recurrent import Mamba2


def describe_v2(values: Mapping[str, Any]) -> DecoderSpec:
    """Mamba2ForCausalLM."""
    config = Config(values)
    shape = dual_shape(
        config,
        config.get("num_heads", int, 128),
        config.get("head_dim", int, 64),
        config.get("n_groups", int, 8),
        config.get("state_size", int, 128),
    )
    bias = config.get("use_bias", bool, default=False)
    mixer = Mamba2(
        shape,
        taps_of(config, "conv_kernel", 4),
        config.get("layer_norm_epsilon", float, 1e-5),
        config.activation("hidden_act", "silu"),
        bias,
        bias,
        config.get("use_conv_bias", bool, default=True),
        limits=limits_of(config),
    )
    return scanning("Mamba2ForCausalLM", config, mixer, tied=False)
