"""What the metadata of models with latent attention say: DeepSeek's V2 and V3 and their kin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.gguf.pairs import SIGMOID, SOFTMAX, Pairs


def deepseek(pairs: Pairs, names: frozenset[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Newer files have attention as over one vector (lengths end in _mla then), older ones have its keys and values."""
    turned, heads = pairs.get("rope.dimension_count", int), pairs.get("attention.head_count", int)
    pairs.get("attention.head_count_kv", int, heads)
    lengths = {name: pairs.get(f"attention.{name}_length", int) for name in ("key", "value")}
    if pairs.has("attention.key_length_mla"):
        lengths = {name: pairs.get(f"attention.{name}_length_mla", int) for name in lengths}
    gating = pairs.get("expert_gating_func", int, SOFTMAX) or SOFTMAX
    if gating not in (SOFTMAX, SIGMOID):
        raise ModelError(f"GGUF: expert_gating_func is {gating}, and only {SOFTMAX} and {SIGMOID} are supported here")
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
    """The file has a tenth of what both of the config's factors of scores are."""
    tenth = pairs.get("rope.scaling.yarn_log_multiplier", float, 0.0)
    return rope if rope is None or not tenth else {**rope, "mscale": 10 * tenth, "mscale_all_dim": 10 * tenth}
