"""Metadata that llama.cpp's converter writes for single model types, as calls of GGUFWriter by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

from gguf import ExpertGatingFuncType

Pairs = dict[str, Any]
"""Arguments by the names of calls; None: no such call."""
Fields = Mapping[str, str]
"""Config fields by the names of the calls that write them unchanged."""


def own_pairs(config: Any) -> Pairs:
    """Return a config's pairs, which replace the common ones."""
    fields = {key: getattr(config, field) for key, field in _FIELDS.get(config.model_type, {}).items()}
    return fields | (_OWN[config.model_type](config) if config.model_type in _OWN else {})


_CAPS: Fields = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GRANITE: Fields = {
    "attention_scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_EXPERTS: Fields = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_QWEN_MOE: Fields = {**_EXPERTS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
_LOCAL_EXPERTS: Fields = {
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "intermediate_size",
}
_ROUTED_EXPERTS: Fields = {
    **_EXPERTS,
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
}
_GROUPS: Fields = {"expert_group_count": "n_group", "expert_group_used_count": "topk_group"}
_NEMOTRON_MOE: Fields = {
    **_ROUTED_EXPERTS,
    **_GROUPS,
    "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
    "moe_latent_size": "moe_latent_size",
}
_MAMBA: Fields = {
    "ssm_conv_kernel": "conv_kernel",
    "ssm_inner_size": "intermediate_size",
    "ssm_state_size": "state_size",
    "ssm_time_step_rank": "time_step_rank",
    "layer_norm_rms_eps": "layer_norm_epsilon",
}
_BAMBA: Fields = {
    "ssm_conv_kernel": "mamba_d_conv",
    "ssm_state_size": "mamba_d_state",
    "ssm_time_step_rank": "mamba_n_heads",
    "ssm_group_count": "mamba_n_groups",
}
_LFM2: Fields = {"shortconv_l_cache": "conv_L_cache", "layer_norm_rms_eps": "norm_eps"}
_DELTA: Fields = {
    "ssm_conv_kernel": "linear_conv_kernel_dim",
    "ssm_state_size": "linear_key_head_dim",
    "ssm_group_count": "linear_num_key_heads",
    "ssm_time_step_rank": "linear_num_value_heads",
}
_DEEPSEEK: Fields = {
    **_ROUTED_EXPERTS,
    **_GROUPS,
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "value_length": "kv_lora_rank",
    "value_length_mla": "v_head_dim",
    "rope_dimension_count": "qk_rope_head_dim",
    "leading_dense_block_count": "first_k_dense_replace",
}
_GEMMA: Fields = {
    "sliding_window": "sliding_window",
    "shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "final_logit_softcapping": "final_logit_softcapping",
}
_FIELDS: Mapping[str, Fields] = {
    "mixtral": {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    "qwen2_moe": _QWEN_MOE,
    "qwen3_moe": {**_EXPERTS, "expert_count": "num_local_experts"},
    "olmoe": {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"},
    "granitemoeshared": {
        **_GRANITE,
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_shared_feed_forward_length": "shared_intermediate_size",
    },
    "glm4_moe": {
        **_ROUTED_EXPERTS,
        "leading_dense_block_count": "first_k_dense_replace",
        "expert_weights_norm": "norm_topk_prob",
    },
    "ernie4_5_moe": {
        "expert_count": "moe_num_experts",
        "expert_used_count": "moe_k",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "moe_num_shared_experts",
        "leading_dense_block_count": "moe_layer_start_index",
        "interleave_moe_layer_step": "moe_layer_interval",
    },
    "minimax_m2": _LOCAL_EXPERTS,
    "gpt_neox": {"parallel_residual": "use_parallel_residual"},
    "gemma2": {"sliding_window": "sliding_window", **_CAPS},
    "gemma3_text": {"sliding_window": "sliding_window"},
    "gemma3n_text": {**_GEMMA, "altup_active_idx": "altup_active_idx", "altup_num_inputs": "altup_num_inputs"},
    "gemma4_text": {
        **_GEMMA,
        "key_length_swa": "head_dim",
        "value_length_swa": "head_dim",
        "rope_dimension_count_swa": "head_dim",
        "expert_count": "num_experts",
        "expert_used_count": "top_k_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
    },
    "cohere": {"logit_scale": "logit_scale"},
    "cohere2": {"logit_scale": "logit_scale", "sliding_window": "sliding_window"},
    "granite": _GRANITE,
    "stablelm": {"parallel_residual": "use_parallel_residual"},
    "mamba": _MAMBA,
    "falcon_mamba": _MAMBA,
    "mamba2": {
        "ssm_conv_kernel": "conv_kernel",
        "ssm_state_size": "state_size",
        "ssm_time_step_rank": "num_heads",
        "ssm_group_count": "n_groups",
        "layer_norm_rms_eps": "layer_norm_epsilon",
    },
    "jamba": {
        "ssm_conv_kernel": "mamba_d_conv",
        "ssm_state_size": "mamba_d_state",
        "ssm_time_step_rank": "mamba_dt_rank",
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
    },
    "falcon_h1": _BAMBA,
    "granitemoehybrid": {**_BAMBA, **_GRANITE, "expert_shared_feed_forward_length": "shared_intermediate_size"},
    "nemotron_h": {
        "layer_norm_eps": "layer_norm_epsilon",
        "layer_norm_rms_eps": "layer_norm_epsilon",
        "ssm_conv_kernel": "conv_kernel",
        "ssm_state_size": "ssm_state_size",
        "ssm_time_step_rank": "mamba_num_heads",
        "ssm_group_count": "n_groups",
    },
    "lfm2": _LFM2,
    "lfm2_moe": {**_LFM2, **_EXPERTS, "leading_dense_block_count": "num_dense_layers"},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": {**_DELTA, **_QWEN_MOE},
    "qwen3_next": {**_DELTA, **_QWEN_MOE},
    "olmo": {"clamp_kqv": "clip_qkv"},
    "gpt_oss": {**_LOCAL_EXPERTS, "sliding_window": "sliding_window"},
    "mpt": {"context_length": "max_seq_len", "layer_norm_eps": "layer_norm_epsilon"},
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
}
"""By model type."""
ATTENTION = ("attention", "full_attention")


def _each(config: Any, kinds: tuple[str, ...], value: int) -> list[int]:
    """Return a value for each layer of one of these kinds, and 0 for the others."""
    types = getattr(config, "layer_types", None) or config.layers_block_type
    return [value if kind in kinds else 0 for kind in types]


def _mamba(config: Any) -> Pairs:
    return {
        "context_length": 2**20,
        "feed_forward_length": 0,
        "head_count": 0,
        "head_count_kv": None,
        "ssm_dt_b_c_rms": config.model_type == "falcon_mamba",
        "layer_norm_eps": None,
    }


def _mamba2(config: Any) -> Pairs:
    return {
        **dict.fromkeys(("head_count_kv", "key_length", "value_length", "layer_norm_eps")),
        "context_length": 2**20,
        "feed_forward_length": 0,
        "head_count": 0,
        "ssm_inner_size": config.num_heads * config.head_dim,
    }


def _jamba(config: Any) -> Pairs:
    kinds = [i % config.attn_layer_period == config.attn_layer_offset for i in range(config.num_hidden_layers)]
    return {
        "head_count_kv": [config.num_key_value_heads if attends else 0 for attends in kinds],
        "rope_freq_base": None,
        "ssm_inner_size": config.mamba_expand * config.hidden_size,
    }


def _bamba(config: Any) -> Pairs:
    return {"ssm_inner_size": config.mamba_n_heads * config.mamba_d_head}


def _granite_hybrid(config: Any) -> Pairs:
    return {
        **_bamba(config),
        "head_count_kv": _each(config, ATTENTION, config.num_key_value_heads),
        "rope_scaling_finetuned": False,
        "expert_count": config.num_local_experts or None,
        "expert_used_count": config.num_experts_per_tok if config.num_local_experts else None,
    }


def _nemotron_h(config: Any) -> Pairs:
    experts = _NEMOTRON_MOE if "moe" in config.layers_block_type else {}
    return {
        **{key: getattr(config, field) for key, field in experts.items()},
        "head_count_kv": _each(config, ATTENTION, config.num_key_value_heads),
        "feed_forward_length": _each(config, ("mlp", "moe"), config.intermediate_size),
        "rope_scaling_finetuned": False,
        "ssm_inner_size": config.mamba_num_heads * config.mamba_head_dim,
    }


def _lfm2(config: Any) -> Pairs:
    return {"head_count_kv": _each(config, ATTENTION, config.num_key_value_heads), "layer_norm_eps": None}


def _lfm2_moe(config: Any) -> Pairs:
    return {**_lfm2(config), "expert_gating_func": ExpertGatingFuncType.SIGMOID}


def _delta(config: Any) -> Pairs:
    return {
        "ssm_inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
        "full_attention_interval": 4,
        "rope_dimension_count": config.head_dim // 4,
        "rope_dimension_sections": [1, 1, 0, 0],
    }


def _olmo(config: Any) -> Pairs:
    return {"layer_norm_eps": 1e-5, "layer_norm_rms_eps": None}


def _windows(config: Any) -> Pairs:
    if config.sliding_window is None:
        return {}
    return {"sliding_window": config.sliding_window, "sliding_window_pattern": _slides(config)}


def _slides(config: Any) -> list[bool]:
    return [kind == "sliding_attention" for kind in config.layer_types]


def _mpt(config: Any) -> Pairs:
    return {
        "head_count_kv": None,
        "rope_freq_base": None,
        "max_alibi_bias": float(config.attn_config.alibi_bias_max),
        "clamp_kqv": config.attn_config.clip_qkv,
    }


def _deepseek(config: Any) -> Pairs:
    third = config.model_type == "deepseek_v3"
    return {
        "head_count_kv": 1,
        "key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "expert_weights_norm": True if config.norm_topk_prob and third else None,
        "expert_gating_func": ExpertGatingFuncType.SIGMOID if third else ExpertGatingFuncType.SOFTMAX,
    }


def _gemma(config: Any) -> Pairs:
    return {
        "sliding_window_pattern": _slides(config),
        "rope_freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
    }


def _gemma3n(config: Any) -> Pairs:
    return {
        **_gemma(config),
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
        **dict.fromkeys(("key_length", "value_length", "rope_dimension_count"), full),
        "head_count_kv": [layer.num_key_value_heads for layer in layers],
        "feed_forward_length": inner if wide else config.intermediate_size,
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
    "qwen3_next": _delta,
    "qwen3_5_text": _delta,
    "qwen3_5_moe_text": _delta,
    "olmo": _olmo,
    "olmo3": _windows,
    "exaone4": _windows,
    "mpt": _mpt,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
"""Functions for computed pairs and constants, by model type."""
