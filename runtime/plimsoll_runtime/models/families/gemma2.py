"""Gemma 2: windows on every second layer, capped scores and logits, and norms after attention and MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_layers, with_mixers, with_windows
from plimsoll_runtime.models.families.gemma3 import NAMES
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding

DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "max_position_embeddings": 8192,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Gemma2ForCausalLM."""
    values = {**DEFAULTS, **values}
    config = Config({**values, "hidden_act": values["hidden_activation"]})
    config.refuse_unless(use_bidirectional_attention=False)
    spec = gated_decoder("Gemma2ForCausalLM", config, norm_offset=1.0, names=NAMES)
    scale = config.positive("query_pre_attn_scalar", float) ** -0.5
    cap = config.get("attn_logit_softcapping", float, 0.0) or None
    capped = with_mixers(spec, lambda m: replace(m, shape=replace(m.shape, scale=scale, softcap=cap)))
    windows = config.windows(["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(spec.num_layers)])
    softcap = config.get("final_logit_softcapping", float, 0.0) or None
    return replace(
        with_windows(with_layers(capped, lambda layer: replace(layer, after=True)), windows),
        embedding=Embedding(scale=spec.hidden_size**0.5),
        head=replace(spec.head, softcap=softcap),
    )
