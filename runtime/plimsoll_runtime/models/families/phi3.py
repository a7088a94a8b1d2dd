"""Phi-3 and Phi-4: Llama whose products are stored as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.changing import with_windows
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.families.reading import Config
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.names import Names

NAMES = Names(query_key_value=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
DEFAULTS = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
"""What a field that is missing means."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Phi3ForCausalLM."""
    config = Config({**DEFAULTS, **values})
    spec = gated_decoder("Phi3ForCausalLM", config, partial=1.0, names=NAMES)
    window = config.get("sliding_window", int, default=0) or None
    return with_windows(spec, [window] * spec.num_layers)
