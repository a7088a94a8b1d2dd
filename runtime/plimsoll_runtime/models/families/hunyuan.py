"""Hunyuan (dense): Llama with norms over the heads of queries and keys, after they have turned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.changing import with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.names import Names

NAMES = Names(head_norms=("self_attn.query_layernorm", "self_attn.key_layernorm"))
DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "mlp_bias": False}
"""What a field that is missing means."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """HunYuanDenseV1ForCausalLM."""
    spec = gated_decoder("HunYuanDenseV1ForCausalLM", Config({**DEFAULTS, **values}), names=NAMES)
    norm = HeadNorm(spec.layers[0].norm, turned=True)
    return with_mixers(spec, lambda mixer: replace(mixer, head_norm=norm))
