"""Config fields from metadata of single families: Gemma, latent attention (DeepSeek), and a few others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.gguf.fields import SIGMOID, SOFTMAX, Pairs, shown, sliding_layers

GEMMA2_27B_LAYERS, GEMMA3_27B_LAYERS = 46, 62
LAUREL_RANK = 64
"""Rank of LAuReL in all Gemma 3n files: no key gives it, and llama.cpp has it as a constant."""
STILL = 2.0**62
"""Frequencies with a divisor this large count as not rotated. Files have 1e30 for such pairs of dimensions."""
FULL, SLIDING = "full_attention", "sliding_attention"


def gemma2(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config field `query_pre_attn_scalar`."""
    return {"query_pre_attn_scalar": _query_scalar(config, GEMMA2_27B_LAYERS)}


def gemma3(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return Gemma 3's config fields: `query_pre_attn_scalar`, the sliding layers with their window and rope base, and
    the softcap of logits.
    """
    softcap = pairs.get("final_logit_softcapping", float, 0.0)
    return {
        "query_pre_attn_scalar": _query_scalar(config, GEMMA3_27B_LAYERS),
        "sliding_window": pairs.get("attention.sliding_window", int),
        "rope_local_base_freq": _local_base(pairs),
        "layer_types": sliding_layers(pairs.raw("attention.sliding_window_pattern"), config["num_hidden_layers"]),
        "final_logit_softcapping": softcap or None,
    }


def gemma3n(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return Gemma 3n's config fields. Files have gate thresholds in standard deviations above the mean; the config has
    them as quantiles.
    """
    layers = config["num_hidden_layers"]
    deviations = pairs.raw("activation_sparsity_scale") or []
    if not isinstance(deviations, list) or not all(isinstance(each, float) for each in deviations):
        raise ModelError(f"GGUF: activation_sparsity_scale is {shown(deviations)}; it must be a list of floats")
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
    """Return Gemma 4's config fields. Head sizes depend on the layer's type; full-attention layers without value
    weights use their keys as values.
    """
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
        raise ModelError(
            f"GGUF: layers {sorted(without)} have no value weights; all full-attention layers or none must lack them"
        )
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
    """Return `query_pre_attn_scalar`: queries are divided by its square root. It is the head size, except in the 27B
    models (hidden size / heads), which can be recognised only by their number of layers.
    """
    if config["num_hidden_layers"] == layers_of_27b:
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int(config["head_dim"])


def _local_base(pairs: Pairs) -> float:
    """Return the rope base of sliding layers."""
    return pairs.get("rope.freq_base_swa", float, 10_000.0)


def _windows(pairs: Pairs, layers: int) -> dict[str, Any]:
    pattern = pairs.raw("attention.sliding_window_pattern")
    if not isinstance(pattern, list) or len(pattern) != layers or not all(isinstance(each, bool) for each in pattern):
        raise ModelError(
            f"GGUF: attention.sliding_window_pattern is {shown(pattern)}; it must have a boolean for each layer"
        )
    return {
        "sliding_window": pairs.get("attention.sliding_window", int),
        "layer_types": [SLIDING if slides else FULL for slides in pattern],
    }


def _inputs(pairs: Pairs, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config fields of per-layer inputs, and the number of last layers that share keys and values.

    The converter pads the table of per-layer inputs with zeros to the vocabulary. Some files store counts as floats.
    """
    shared = pairs.get("attention.shared_kv_layers", float, 0.0)
    if not shared.is_integer() or not 0 <= shared <= config["num_hidden_layers"]:
        raise ModelError(
            f"GGUF: attention.shared_kv_layers is {shared}, but must be a whole number up to "
            f"{config['num_hidden_layers']}"
        )
    return {
        "num_kv_shared_layers": int(shared),
        "hidden_size_per_layer_input": pairs.get("embedding_length_per_layer_input", int, 0),
        "vocab_size_per_layer_input": config["vocab_size"],
    }


def _head_size(pairs: Pairs, kind: str) -> int:
    """Return the size of a head. `kind`: suffix of its metadata keys.

    Raises ModelError if values or rotated dimensions have another size (frequency factors express partial rotation).
    """
    keys = pairs.get(f"attention.key_length{kind}", int)
    for key in (f"attention.value_length{kind}", f"rope.dimension_count{kind}"):
        if (size := pairs.get(key, int, keys)) != keys:
            raise ModelError(f"GGUF: {key} is {size}, which is not supported for heads of {keys} dimensions")
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
    """Return whether layers with shared keys have MLPs of twice the width. Raises ModelError for any other widths."""
    own = len(inner) - shared
    wide = shared > 0 and inner[-1] == 2 * inner[0]
    if list(inner) != [inner[0]] * own + [inner[0] * (2 if wide else 1)] * shared:
        raise ModelError(f"GGUF: feed_forward_length is {shown(list(inner))}, which is not supported")
    return wide


def deepseek(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return DeepSeek's config fields. Newer files store latent attention (lengths end in _mla), older ones its keys
    and values.
    """
    turned, heads = pairs.get("rope.dimension_count", int), pairs.get("attention.head_count", int)
    pairs.get("attention.head_count_kv", int, heads)
    lengths = {name: pairs.get(f"attention.{name}_length", int) for name in ("key", "value")}
    if pairs.has("attention.key_length_mla"):
        lengths = {name: pairs.get(f"attention.{name}_length_mla", int) for name in lengths}
    gating = pairs.get("expert_gating_func", int, SOFTMAX) or SOFTMAX
    if gating not in (SOFTMAX, SIGMOID):
        raise ModelError(f"GGUF: expert_gating_func is {gating}; supported are {SOFTMAX} and {SIGMOID}")
    groups = pairs.get("expert_group_count", int, 1) or 1
    grouped = {"topk_method": "greedy" if groups == 1 else "group_limited_greedy"}
    third = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "num_nextn_predict_layers": 0}
    return {
        **(third if gating == SIGMOID else grouped),
        "architectures": ["DeepseekV3ForCausalLM" if gating == SIGMOID else "DeepseekV2ForCausalLM"],
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": pairs.get("attention.q_lora_rank", int, 0) or None,
        "kv_lora_rank": pairs.get("attention.kv_lora_rank", int),
        "qk_nope_head_dim": lengths["key"] - turned,
        "qk_rope_head_dim": turned,
        "v_head_dim": lengths["value"],
        "n_routed_experts": pairs.get("expert_count", int),
        "num_experts_per_tok": pairs.get("expert_used_count", int),
        "moe_intermediate_size": pairs.get("expert_feed_forward_length", int),
        "n_shared_experts": pairs.get("expert_shared_count", int, 0),
        "first_k_dense_replace": pairs.get("leading_dense_block_count", int, 0),
        "routed_scaling_factor": pairs.get("expert_weights_scale", float, 1.0) or 1.0,
        "norm_topk_prob": pairs.get("expert_weights_norm", bool, False),
        "n_group": groups,
        "topk_group": pairs.get("expert_group_used_count", int, 1) or 1,
        "attention_bias": "blk.0.attn_output.bias" in names,
        "rope_interleave": True,
        "rope_scaling": _stretched(pairs, config["rope_scaling"]),
    }


def _stretched(pairs: Pairs, rope: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Add mscale and mscale_all_dim to a rope scaling, if the file has them: it stores a tenth of their value."""
    tenth = pairs.get("rope.scaling.yarn_log_multiplier", float, 0.0)
    return rope if rope is None or not tenth else {**rope, "mscale": 10 * tenth, "mscale_all_dim": 10 * tenth}


def windowed(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config fields of the attention window: its size (None if the file has none), and the layer types."""
    window = pairs.get("attention.sliding_window", int, 0) or None
    pattern = pairs.raw("attention.sliding_window_pattern")
    types = {} if window is None else {"layer_types": sliding_layers(pattern or 4, config["num_hidden_layers"])}
    return {"sliding_window": window, **types}


def olmo2(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config fields of OLMo 3 if the file has a window, else none (OLMo 2)."""
    found = windowed(pairs, names, config)
    return {} if found["sliding_window"] is None else {**found, "architectures": ["Olmo3ForCausalLM"]}


def falcon(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return Falcon's config fields. The large models have several key heads and a second norm before attention."""
    kv_heads, own_norm = config["num_key_value_heads"], "blk.0.attn_norm_2.weight" in names
    grouped = own_norm or kv_heads > 1
    return {
        "num_kv_heads": kv_heads,
        "multi_query": not grouped,
        "new_decoder_architecture": grouped,
        "num_ln_in_parallel_attn": 2 if own_norm else 1,
    }


def mpt(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config field `attn_config`: the ALiBi settings, and the clip of queries, keys and values."""
    bias = pairs.get("attention.max_alibi_bias", float, 8.0)
    attention: dict[str, Any] = {"alibi": bias != 0.0, "alibi_bias_max": int(bias) if bias.is_integer() else bias}
    if clip := pairs.get("attention.clamp_kqv", float, 0.0):
        attention["clip_qkv"] = clip
    return {"attn_config": attention}


def gpt_oss(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rope scaling without rounding of yarn's correction range, which no key mentions."""
    rope = config["rope_scaling"]
    return {"rope_scaling": {"rope_type": "default"} if rope is None else {**rope, "truncate": False}}
