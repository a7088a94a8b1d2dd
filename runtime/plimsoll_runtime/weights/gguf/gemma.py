"""What the metadata of Gemma 2, 3, 3n and 4 say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.gguf.pairs import Pairs, shown, sliding_layers

GEMMA2_27B_LAYERS, GEMMA3_27B_LAYERS = 46, 62
LAUREL_RANK = 64
"""Of all files: no key says it, and llama.cpp knows no other."""
STILL = 2.0**62
"""A pair of dimensions whose frequency is divided by as much does not turn: files have 1e30 there."""
FULL, SLIDING = "full_attention", "sliding_attention"


def gemma2(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """By what queries are scaled."""
    return {"query_pre_attn_scalar": _query_scalar(config, GEMMA2_27B_LAYERS)}


def gemma3(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """By what queries are scaled, and which layers slide, with a rope of their own."""
    softcap = pairs.get("final_logit_softcapping", float, 0.0)
    return {
        "query_pre_attn_scalar": _query_scalar(config, GEMMA3_27B_LAYERS),
        "sliding_window": pairs.get("attention.sliding_window", int),
        "rope_local_base_freq": _local_base(pairs),
        "layer_types": sliding_layers(pairs.raw("attention.sliding_window_pattern"), config["num_hidden_layers"]),
        "final_logit_softcapping": softcap or None,
    }


def gemma3n(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Gates cut at so many deviations above the mean, which a config says as a share of what is below."""
    layers = config["num_hidden_layers"]
    deviations = pairs.raw("activation_sparsity_scale") or []
    if not isinstance(deviations, list) or not all(isinstance(each, float) for each in deviations):
        raise ModelError(f"GGUF: activation_sparsity_scale is {shown(deviations)}, which is no list of numbers")
    return {
        **_windows(pairs, layers),
        **_inputs(pairs, config),
        "intermediate_size": pairs.each("feed_forward_length", layers),
        "activation_sparsity_pattern": [NormalDist().cdf(each) for each in deviations] or None,
        "rope_local_base_freq": _local_base(pairs),
        "final_logit_softcapping": pairs.get("final_logit_softcapping", float, 30.0),
        "altup_num_inputs": pairs.get("altup.num_inputs", int),
        "altup_active_idx": pairs.get("altup.active_idx", int),
        "laurel_rank": LAUREL_RANK,
    }


def gemma4(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of heads by their kind; where layers that see all have no values, those are the keys."""
    layers = config["num_hidden_layers"]
    found = {**_windows(pairs, layers), **_inputs(pairs, config)}
    shared = found["num_kv_shared_layers"]
    sizes = {FULL: _head_size(pairs, ""), SLIDING: _head_size(pairs, "_swa")}
    kv_heads = pairs.each("attention.head_count_kv", layers)
    own = {
        str(number): {"head_dim": sizes[kind], "num_key_value_heads": kv_heads[number]}
        for number, kind in enumerate(found["layer_types"])
    }
    without = {n for n in range(layers - shared) if f"blk.{n}.attn_v.weight" not in names}
    full = {n for n in range(layers - shared) if found["layer_types"][n] == FULL}
    if without and without != full:
        raise ModelError(f"GGUF: layers {sorted(without)} have no values, and not all that see the whole context")
    inner = pairs.each("feed_forward_length", layers)
    rope = dict(config["rope_scaling"] or {"rope_type": "default"})
    if "frequency_factors" in rope:
        rope["frequency_factors"] = [min(each, STILL) for each in rope["frequency_factors"]]
    return {
        **found,
        **_experts(pairs),
        "num_attention_heads": pairs.get("attention.head_count", int),
        "num_key_value_heads": kv_heads[0],
        "head_dim": sizes[SLIDING],
        "per_layer_config": own,
        "attention_k_eq_v": bool(without),
        "intermediate_size": inner[0],
        "use_double_wide_mlp": _is_wider(inner, shared),
        "final_logit_softcapping": pairs.get("final_logit_softcapping", float, 0.0) or None,
        "rope_scaling": None,
        "rope_parameters": {
            FULL: {**rope, "rope_theta": config["rope_theta"]},
            SLIDING: {"rope_type": "default", "rope_theta": _local_base(pairs)},
        },
    }


def _query_scalar(config: Mapping[str, Any], layers_of_27b: int) -> int:
    """The 27B models alone scale queries by their hidden size over their heads; no key says so."""
    if config["num_hidden_layers"] == layers_of_27b:
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int(config["head_dim"])


def _local_base(pairs: Pairs) -> float:
    """Of the rope of layers that slide."""
    return pairs.get("rope.freq_base_swa", float, 10_000.0)


def _windows(pairs: Pairs, layers: int) -> dict[str, Any]:
    pattern = pairs.raw("attention.sliding_window_pattern")
    if not isinstance(pattern, list) or len(pattern) != layers or not all(isinstance(each, bool) for each in pattern):
        raise ModelError(f"GGUF: attention.sliding_window_pattern is {shown(pattern)}, which says not for each layer")
    return {
        "sliding_window": pairs.get("attention.sliding_window", int),
        "layer_types": [SLIDING if slides else FULL for slides in pattern],
    }


def _inputs(pairs: Pairs, config: Mapping[str, Any]) -> dict[str, Any]:
    """The converter fills the table of tokens' inputs up with zeros; some files have counts as fractions."""
    shared = pairs.get("attention.shared_kv_layers", float, 0.0)
    if not shared.is_integer() or not 0 <= shared <= config["num_hidden_layers"]:
        raise ModelError(f"GGUF: attention.shared_kv_layers is {shared} of {config['num_hidden_layers']} layers")
    return {
        "num_kv_shared_layers": int(shared),
        "hidden_size_per_layer_input": pairs.get("embedding_length_per_layer_input", int, 0),
        "vocab_size_per_layer_input": config["vocab_size"],
    }


def _head_size(pairs: Pairs, kind: str) -> int:
    """Of keys, which is that of values and of what turns: partial rotation is in the factors."""
    keys = pairs.get(f"attention.key_length{kind}", int)
    for key in (f"attention.value_length{kind}", f"rope.dimension_count{kind}"):
        if (size := pairs.get(key, int, keys)) != keys:
            raise ModelError(f"GGUF: {key} is {size}, but a head has {keys} dimensions: not supported")
    return keys


def _experts(pairs: Pairs) -> dict[str, Any]:
    count = pairs.get("expert_count", int, 0)
    inner = pairs.get("expert_feed_forward_length", int, 0)
    return {
        "enable_moe_block": count > 0,
        "num_experts": count,
        "top_k_experts": pairs.get("expert_used_count", int, 0),
        "moe_intermediate_size": inner,
    }


def _is_wider(inner: Sequence[int], shared: int) -> bool:
    """Whether layers that share keys have MLPs of twice the width. Raises ModelError for any other widths."""
    own = len(inner) - shared
    wide = shared > 0 and inner[-1] == 2 * inner[0]
    if list(inner) != [inner[0]] * own + [inner[0] * (2 if wide else 1)] * shared:
        raise ModelError(f"GGUF: feed_forward_length is {shown(list(inner))}: not supported")
    return wide
