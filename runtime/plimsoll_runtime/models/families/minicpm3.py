"""MiniCPM 3: latent attention, with factors of embeddings, residuals and logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.mla import latent_decoder
from plimsoll_runtime.models.families.common.variants import with_layers
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {
    "kv_lora_rank": 256,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
}
"""Defaults of missing fields. Null disables the factor scale_depth or dim_model_base; for scale_emb it is an error."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of MiniCPM3ForCausalLM."""
    config = Config({**DEFAULTS, **values})
    hidden, heads = config.positive("hidden_size", int), config.positive("num_attention_heads", int)
    width = config.get("v_head_dim", int, hidden // heads)
    spec = latent_decoder("MiniCPM3ForCausalLM", {**config.values, "v_head_dim": width}, pairs=False)
    layers = sqrt(spec.num_layers)
    scale = config.get("scale_depth", float, layers) / layers
    return replace(
        with_layers(spec, lambda layer: replace(layer, scale=scale)),
        embedding=replace(spec.embedding, scale=config.get("scale_emb", float)),
        head=replace(spec.head, scale=config.get("dim_model_base", float, float(hidden)) / hidden),
    )
