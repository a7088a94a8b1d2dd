"""Bamba: Mamba 2 on most layers, attention on some, and an MLP on each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.hybrid import bamba_mixer, with_kinds
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.tensor_names import Names

DEFAULTS = {"num_key_value_heads": 8, "max_position_embeddings": 262_144}
"""Defaults of missing fields."""
NAMES = Names(
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    recurrent="mamba",
    norms=("input_layernorm", "", "pre_ff_layernorm", ""),
    final_norm="model.final_layernorm",
)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of BambaForCausalLM. Half of each head is rotated, independent of the config."""
    config = Config({"rms_norm_eps": 1e-5, **DEFAULTS, **values, "partial_rotary_factor": None})
    rope = {k: v for k, v in config.mapping("rope_parameters").items() if k != "partial_rotary_factor"}
    spec = gated_decoder(
        "BambaForCausalLM", Config({**config.values, "rope_parameters": rope}), partial=0.5, names=NAMES
    )
    attending = config.values.get("attn_layer_indices") or []
    if not isinstance(attending, list):
        raise ModelError(f"config.json: attn_layer_indices is {attending!r}; it must be a list of layer numbers")
    kinds = ["full_attention" if i in attending else "linear_attention" for i in range(spec.num_layers)]
    return with_kinds(spec, kinds, bamba_mixer(config))
