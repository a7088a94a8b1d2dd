"""StableLM: Llama with layer norms, and with a quarter of each head rotated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_layers, with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Residual
from plimsoll_runtime.models.spec.norm import Norm

DEFAULTS = {"num_key_value_heads": 32, "max_position_embeddings": 4096}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of StableLmForCausalLM."""
    config = Config({**DEFAULTS, **values, "attention_bias": False, "mlp_bias": False})
    config.refuse_unless(qk_layernorm=False)
    norm = Norm(config.get("layer_norm_eps", float, 1e-5), "layer", biased=True)
    bias = config.get("use_qkv_bias", bool, default=False)
    parallel = config.get("use_parallel_residual", bool, default=False)
    spec = with_mixers(gated_decoder("StableLmForCausalLM", config, partial=0.25), lambda m: replace(m, qkv_bias=bias))
    residual: Residual = "parallel-one-norm" if parallel else "sequential"
    layers = with_layers(spec, lambda layer: replace(layer, norm=norm, residual=residual))
    return replace(layers, final_norm=norm)
