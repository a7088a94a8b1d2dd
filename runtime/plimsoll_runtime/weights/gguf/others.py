"""What the metadata of some architectures say in a way of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.weights.gguf.pairs import Pairs, sliding_layers


def windowed(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Which layers slide, where some do."""
    window = pairs.get("attention.sliding_window", int, 0) or None
    pattern = pairs.raw("attention.sliding_window_pattern")
    types = {} if window is None else {"layer_types": sliding_layers(pattern or 4, config["num_hidden_layers"])}
    return {"sliding_window": window, **types}


def olmo2(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """With windows it is an OLMo 3."""
    found = windowed(pairs, names, config)
    return {} if found["sliding_window"] is None else {**found, "architectures": ["Olmo3ForCausalLM"]}


def falcon(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """The large ones have groups of heads, and a norm of its own before attention."""
    kv_heads, own_norm = config["num_key_value_heads"], "blk.0.attn_norm_2.weight" in names
    grouped = own_norm or kv_heads > 1
    return {
        "num_kv_heads": kv_heads,
        "multi_query": not grouped,
        "new_decoder_architecture": grouped,
        "num_ln_in_parallel_attn": 2 if own_norm else 1,
    }


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
