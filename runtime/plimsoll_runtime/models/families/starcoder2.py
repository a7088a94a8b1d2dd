"""StarCoder2: Llama with layer norms, plain MLPs and biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.arcee import plain_mlps
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_layers, with_sliding
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(gate_up=("mlp.c_fc",), down="mlp.c_proj")
DEFAULTS = {
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-5,
    "use_bias": True,
    "tie_word_embeddings": True,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Starcoder2ForCausalLM."""
    values = {**DEFAULTS, **values}
    config = Config({**values, "attention_bias": values["use_bias"], "mlp_bias": values["use_bias"]})
    norm = Norm(config.get("norm_epsilon", float), "layer", biased=True)
    spec = with_sliding(config, plain_mlps(gated_decoder("Starcoder2ForCausalLM", config, names=NAMES)))
    return replace(with_layers(spec, lambda layer: replace(layer, norm=norm)), final_norm=norm)
