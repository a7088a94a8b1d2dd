"""What the metadata of some architectures say in a way of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.weights.gguf.pairs import Pairs


def mpt(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Slopes, and to what queries, keys and values are cut."""
    bias = pairs.get("attention.max_alibi_bias", float, 8.0)
    attention: dict[str, Any] = {"alibi": bias != 0.0, "alibi_bias_max": int(bias) if bias.is_integer() else bias}
    if clip := pairs.get("attention.clamp_kqv", float, 0.0):
        attention["clip_qkv"] = clip
    return {"attn_config": attention}


def gpt_oss(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Its ropes are stretched between borders that are not rounded, which no key says."""
    rope = config["rope_scaling"]
    return {"rope_scaling": {"rope_type": "default"} if rope is None else {**rope, "truncate": False}}
