"""GLM 4 (9B, as GLM and as GLM-4-0414): RoPE of neighbouring dimensions on half of each head; biases of queries, keys
and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_layers, with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(gate_up=("mlp.gate_up_proj",))
NORMED = replace(
    NAMES,
    norms=("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
)
DEFAULTS = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of GlmForCausalLM."""
    return _decoder("GlmForCausalLM", values, NAMES)


def describe_normed(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Glm4ForCausalLM, which has norms after attention and MLP."""
    spec = _decoder("Glm4ForCausalLM", values, NORMED)
    return with_layers(spec, lambda layer: replace(layer, after=True))


def _decoder(architecture: str, values: Mapping[str, Any], names: Names) -> DecoderSpec:
    config = Config({**DEFAULTS, **values, "mlp_bias": False})
    spec = gated_decoder(architecture, config, partial=0.5, pairs=True, names=names)
    return with_mixers(spec, lambda mixer: replace(mixer, output_bias=False))
