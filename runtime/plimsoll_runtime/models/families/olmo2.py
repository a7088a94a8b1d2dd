"""OLMo 2: norms after attention and the MLP, none before, and over all heads of queries and keys together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.changing import with_layers, with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.names import Names

NAMES = Names(norms=("", "post_attention_layernorm", "", "post_feedforward_layernorm"))
DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "mlp_bias": False}
"""What a field that is missing means."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Olmo2ForCausalLM."""
    return normed_after("Olmo2ForCausalLM", Config({**DEFAULTS, **values}))


def normed_after(architecture: str, config: Config, *, theta: float = 10_000.0) -> DecoderSpec:
    """The same layers, whatever their windows and ropes."""
    spec = gated_decoder(architecture, config, theta=theta, names=NAMES)
    norm = HeadNorm(spec.layers[0].norm, together=True)
    normed = with_mixers(spec, lambda mixer: replace(mixer, head_norm=norm))
    return with_layers(normed, lambda layer: replace(layer, before=False, after=True))
