"""MiniMax M2: norms over all heads together, partly rotated heads, and sigmoid scores corrected by a bias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.moe import with_experts
from plimsoll_runtime.models.families.common.variants import with_mixers
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.families.mixtral import NAMES
from plimsoll_runtime.models.spec.attention import HeadNorm
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import TopK

DEFAULTS = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 196_608}
"""Defaults of missing fields."""
THETA = 5_000_000.0
COMPUTED = {
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "shared_intermediate_size": 0,
}
"""Fields of released configs that Transformers ignores, with the supported value."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of MiniMaxM2ForCausalLM."""
    config = Config({**DEFAULTS, **values, "attention_bias": False, "mlp_bias": False})
    config.refuse_unless(**COMPUTED)
    head_dim = config.positive("head_dim", int)
    part = config.get("rotary_dim", int, head_dim) / head_dim
    spec = gated_decoder("MiniMaxM2ForCausalLM", config, partial=part, theta=THETA, names=NAMES)
    norm = HeadNorm(spec.layers[0].norm, together=True)
    spec = with_mixers(spec, lambda mixer: replace(mixer, head_norm=norm))
    return with_experts(config, spec, "num_local_experts", (256, 8), TopK("sigmoid", corrected=True))
