"""Phi-3 and Phi-4: Llama with joined projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import with_sliding
from plimsoll_runtime.models.families.llama import gated_decoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.tensor_names import Names

NAMES = Names(query_key_value=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
DEFAULTS = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
"""Defaults of missing fields."""
ROPES = ("rope_parameters", "rope_scaling")


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of Phi3ForCausalLM."""
    config = Config({**DEFAULTS, **values, **{field: _rope(values.get(field)) for field in ROPES}})
    spec = gated_decoder("Phi3ForCausalLM", config, partial=1.0, names=NAMES)
    return with_sliding(config, spec)


def _rope(values: Any) -> Any:
    """Return rope parameters with longrope's current name: the first configs called it `su` or `yarn`."""
    if not isinstance(values, Mapping):
        return values
    return {k: "longrope" if k in ("type", "rope_type") and v in ("su", "yarn") else v for k, v in values.items()}
