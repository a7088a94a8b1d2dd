"""Youtu: DeepSeek V3's latent attention without mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.mla import latent_decoder
from plimsoll_runtime.models.families.deepseek import V3
from plimsoll_runtime.models.spec.decoder import DecoderSpec

DEFAULTS = {**V3, "max_position_embeddings": 131_072, "tie_word_embeddings": True}
"""Defaults of missing fields."""


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of YoutuForCausalLM."""
    return latent_decoder("YoutuForCausalLM", {**DEFAULTS, **values, "mlp_bias": False})
