"""What llama.cpp's converter writes of recurrent models, of hybrids, and of others with ways of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

from gguf import ExpertGatingFuncType

Pairs = dict[str, Any]
"""Calls of GGUFWriter by name; None: none."""


def own_pairs(config: Any) -> Pairs:
    """Those of a config, in the place of what most say."""
    return _OWN[config.model_type](config) if config.model_type in _OWN else {}


def _each(config: Any, kinds: tuple[str, ...], value: int) -> list[int]:
    """A value for each layer that is of one of these kinds, and 0 for the others."""
    types = getattr(config, "layer_types", None) or config.layers_block_type
    return [value if kind in kinds else 0 for kind in types]


ATTENTION = ("attention", "full_attention")


def _mamba(config: Any) -> Pairs:
    return {
        "context_length": 2**20,
        "feed_forward_length": 0,
        "head_count": 0,
        "head_count_kv": None,
        "ssm_conv_kernel": config.conv_kernel,
        "ssm_inner_size": config.intermediate_size,
        "ssm_state_size": config.state_size,
        "ssm_time_step_rank": config.time_step_rank,
        "ssm_dt_b_c_rms": config.model_type == "falcon_mamba",
        "layer_norm_eps": None,
        "layer_norm_rms_eps": config.layer_norm_epsilon,
    }


def _mamba2(config: Any) -> Pairs:
    return {
        **dict.fromkeys(("head_count_kv", "key_length", "value_length", "layer_norm_eps")),
        "context_length": 2**20,
        "feed_forward_length": 0,
        "head_count": 0,
        "ssm_conv_kernel": config.conv_kernel,
        "ssm_inner_size": config.num_heads * config.head_dim,
        "ssm_state_size": config.state_size,
        "ssm_time_step_rank": config.num_heads,
        "ssm_group_count": config.n_groups,
        "layer_norm_rms_eps": config.layer_norm_epsilon,
    }


def _jamba(config: Any) -> Pairs:
    kinds = [i % config.attn_layer_period == config.attn_layer_offset for i in range(config.num_hidden_layers)]
    return {
        "head_count_kv": [config.num_key_value_heads if attends else 0 for attends in kinds],
        "rope_freq_base": None,
        "ssm_conv_kernel": config.mamba_d_conv,
        "ssm_inner_size": config.mamba_expand * config.hidden_size,
        "ssm_state_size": config.mamba_d_state,
        "ssm_time_step_rank": config.mamba_dt_rank,
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
    }


def _bamba(config: Any) -> Pairs:
    return {
        "ssm_conv_kernel": config.mamba_d_conv,
        "ssm_inner_size": config.mamba_n_heads * config.mamba_d_head,
        "ssm_state_size": config.mamba_d_state,
        "ssm_time_step_rank": config.mamba_n_heads,
        "ssm_group_count": config.mamba_n_groups,
    }


def _granite_hybrid(config: Any) -> Pairs:
    return {
        **_bamba(config),
        "head_count_kv": _each(config, ATTENTION, config.num_key_value_heads),
        "rope_scaling_finetuned": False,
        "attention_scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
        "expert_count": config.num_local_experts or None,
        "expert_used_count": config.num_experts_per_tok if config.num_local_experts else None,
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
    }


def _nemotron_h(config: Any) -> Pairs:
    experts = {
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": config.norm_topk_prob,
        "moe_latent_size": config.moe_latent_size,
    }
    return {
        **(experts if "moe" in config.layers_block_type else {}),
        "head_count_kv": _each(config, ATTENTION, config.num_key_value_heads),
        "feed_forward_length": _each(config, ("mlp", "moe"), config.intermediate_size),
        "layer_norm_eps": config.layer_norm_epsilon,
        "layer_norm_rms_eps": config.layer_norm_epsilon,
        "rope_scaling_finetuned": False,
        "ssm_conv_kernel": config.conv_kernel,
        "ssm_inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "ssm_state_size": config.ssm_state_size,
        "ssm_time_step_rank": config.mamba_num_heads,
        "ssm_group_count": config.n_groups,
    }


def _lfm2(config: Any) -> Pairs:
    return {
        "head_count_kv": _each(config, ATTENTION, config.num_key_value_heads),
        "shortconv_l_cache": config.conv_L_cache,
        "layer_norm_eps": None,
        "layer_norm_rms_eps": config.norm_eps,
    }


def _lfm2_moe(config: Any) -> Pairs:
    return {
        **_lfm2(config),
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "leading_dense_block_count": config.num_dense_layers,
        "expert_gating_func": ExpertGatingFuncType.SIGMOID,
    }


def _qwen3_next(config: Any) -> Pairs:
    return {
        **_qwen35(config),
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
    }


def _qwen35(config: Any) -> Pairs:
    return {
        "ssm_conv_kernel": config.linear_conv_kernel_dim,
        "ssm_state_size": config.linear_key_head_dim,
        "ssm_group_count": config.linear_num_key_heads,
        "ssm_time_step_rank": config.linear_num_value_heads,
        "ssm_inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
        "full_attention_interval": 4,
        "rope_dimension_count": config.head_dim // 4,
        "rope_dimension_sections": [1, 1, 0, 0],
    }


def _olmo(config: Any) -> Pairs:
    return {"layer_norm_eps": 1e-5, "layer_norm_rms_eps": None, "clamp_kqv": config.clip_qkv}


def _windows(config: Any) -> Pairs:
    if config.sliding_window is None:
        return {}
    return {
        "sliding_window": config.sliding_window,
        "sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
    }


def _gpt_oss(config: Any) -> Pairs:
    return {
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.intermediate_size,
        "sliding_window": config.sliding_window,
    }


def _mpt(config: Any) -> Pairs:
    return {
        "context_length": config.max_seq_len,
        "head_count_kv": None,
        "rope_freq_base": None,
        "layer_norm_eps": config.layer_norm_epsilon,
        "max_alibi_bias": float(config.attn_config.alibi_bias_max),
        "clamp_kqv": config.attn_config.clip_qkv,
    }


def _deepseek(config: Any) -> Pairs:
    third = config.model_type == "deepseek_v3"
    gating = ExpertGatingFuncType.SIGMOID if third else ExpertGatingFuncType.SOFTMAX
    return {
        "head_count_kv": 1,
        "q_lora_rank": config.q_lora_rank,
        "kv_lora_rank": config.kv_lora_rank,
        "key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "value_length": config.kv_lora_rank,
        "key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "value_length_mla": config.v_head_dim,
        "rope_dimension_count": config.qk_rope_head_dim,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": True if config.norm_topk_prob and third else None,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "expert_gating_func": gating,
    }


def _gemma(config: Any) -> Pairs:
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    return {
        "sliding_window": config.sliding_window,
        "sliding_window_pattern": slides,
        "shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "final_logit_softcapping": config.final_logit_softcapping,
        "rope_freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
    }


def _gemma3n(config: Any) -> Pairs:
    return {
        **_gemma(config),
        "altup_active_idx": config.altup_active_idx,
        "altup_num_inputs": config.altup_num_inputs,
        "activation_sparsity_scale": [
            NormalDist().inv_cdf(share) if share else float("-inf") for share in config.activation_sparsity_pattern
        ],
    }


def _gemma4(config: Any) -> Pairs:
    layers = [config.per_layer_config[number] for number in range(config.num_hidden_layers)]
    full = layers[config.layer_types.index("full_attention")].head_dim
    wide = config.use_double_wide_mlp
    own = config.num_hidden_layers - config.num_kv_shared_layers
    inner = [config.intermediate_size * (2 if wide and i >= own else 1) for i in range(config.num_hidden_layers)]
    return {
        **_gemma(config),
        "key_length": full,
        "value_length": full,
        "rope_dimension_count": full,
        "key_length_swa": config.head_dim,
        "value_length_swa": config.head_dim,
        "rope_dimension_count_swa": config.head_dim,
        "head_count_kv": [layer.num_key_value_heads for layer in layers],
        "feed_forward_length": inner if wide else config.intermediate_size,
        "expert_count": config.num_experts,
        "expert_used_count": config.top_k_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }


_OWN: Mapping[str, Callable[[Any], Pairs]] = {
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "falcon_h1": _bamba,
    "granitemoehybrid": _granite_hybrid,
    "nemotron_h": _nemotron_h,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
    "qwen3_next": _qwen3_next,
    "qwen3_5_text": _qwen35,
    "qwen3_5_moe_text": _qwen3_next,
    "olmo": _olmo,
    "olmo3": _windows,
    "exaone4": _windows,
    "gpt_oss": _gpt_oss,
    "mpt": _mpt,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
