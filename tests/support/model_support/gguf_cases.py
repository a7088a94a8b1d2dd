"""Models to write as GGUF files: at least one for each supported architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gguf import ExpertGatingFuncType


@dataclass(frozen=True)
class Case:
    """A model to write and read back."""

    config: str
    values: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
"""Rows of 256, the block size of the K types."""
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
}
FAMILIES: Mapping[str, Case] = {
    "llama": Case("LlamaConfig", SIZES),
    "qwen2": Case("Qwen2Config", {**SIZES, "tie_word_embeddings": True}),
    "qwen3": Case("Qwen3Config", {**SIZES, "head_dim": 64}),
    "gemma3": Case(
        "Gemma3TextConfig",
        {**SIZES, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 16, "num_hidden_layers": 6},
    ),
}
SMALL: Mapping[str, Any] = {"num_hidden_layers": 2}
MORE: Mapping[str, Case] = {
    "gemma": Case("GemmaConfig", {"head_dim": 16}),
    "gemma2": Case(
        "Gemma2Config", {"head_dim": 16, "sliding_window": 16, "num_hidden_layers": 4, "query_pre_attn_scalar": 16}
    ),
    "phi2": Case("PhiConfig", SMALL),
    "phi3": Case("Phi3Config", SMALL),
    "starcoder2": Case("Starcoder2Config", SMALL),
    "stablelm": Case("StableLmConfig", {"partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "stablelm-parallel": Case("StableLmConfig", {"partial_rotary_factor": 0.5, "use_parallel_residual": True}),
    "command-r": Case("CohereConfig", {"logit_scale": 0.5}),
    "cohere2": Case("Cohere2Config", {"logit_scale": 0.5, "sliding_window": 16, "num_hidden_layers": 4}),
    "olmo": Case("OlmoConfig", {"clip_qkv": 0.5}),
    "olmo2": Case("Olmo2Config", SMALL),
    "olmo2-windows": Case("Olmo3Config", {"num_hidden_layers": 4, "sliding_window": 16}),
    "exaone4": Case("Exaone4Config", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "granite": Case(
        "GraniteConfig",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
        },
    ),
    "nemotron": Case("NemotronConfig", SMALL),
    "smollm3": Case("SmolLM3Config", {"num_hidden_layers": 5}),
    "seed_oss": Case("SeedOssConfig", {"head_dim": 16}),
    "hunyuan-dense": Case("HunYuanDenseV1Config", {"head_dim": 16}),
    "ernie4_5": Case("Ernie4_5Config", {"head_dim": 16}),
    "glm4": Case("Glm4Config", {"head_dim": 16}),
    "arcee": Case("ArceeConfig", SMALL),
}
BLOCKS: Mapping[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
"""Rows are multiples of blocks of 32."""
QWEN2_MOE: Mapping[str, Any] = {
    **BLOCKS,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LATENT: Mapping[str, Any] = {
    **BLOCKS,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "rope_parameters": PLAIN,
}
HYBRID: Mapping[str, Any] = {
    "layer_types": ["mamba", "attention", "mamba"],
    "shared_intermediate_size": 32,
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "mamba_expand": 2,
}
SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA: Mapping[str, Any] = {
    **BLOCKS,
    "num_hidden_layers": 6,
    "head_dim": 32,
    "sliding_window": 16,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
}
CONVERTED: Mapping[str, Case] = {
    "gemma3n": Case(
        "Gemma3nTextConfig",
        {
            **GEMMA,
            "intermediate_size": [64] * 6,
            "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0, 0.0, 0.0],
            "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": 20,
            "final_logit_softcapping": 7.0,
        },
    ),
    "gemma4": Case(
        "Gemma4TextConfig",
        {**GEMMA, "global_head_dim": 64, "vocab_size_per_layer_input": 20, "use_double_wide_mlp": True},
    ),
    "gemma4-values-of-keys": Case(
        "Gemma4TextConfig",
        {
            **GEMMA,
            "global_head_dim": 64,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "final_logit_softcapping": 7.0,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 3,
            "moe_intermediate_size": 32,
        },
    ),
    "llama-mixtral": Case("MixtralConfig", {**BLOCKS, "num_local_experts": 6}),
    "qwen2moe": Case("Qwen2MoeConfig", QWEN2_MOE),
    "qwen3moe": Case("Qwen3MoeConfig", {**QWEN2_MOE, "head_dim": 16, "norm_topk_prob": True}),
    "olmoe": Case("OlmoeConfig", {**BLOCKS, "num_key_value_heads": 4, "num_experts": 6, "num_experts_per_tok": 3}),
    "granitemoe": Case(
        "GraniteMoeSharedConfig",
        {
            **BLOCKS,
            "num_local_experts": 6,
            "shared_intermediate_size": 32,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
        },
    ),
    "glm4moe": Case(
        "Glm4MoeConfig",
        {
            **BLOCKS,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "head_dim": 16,
            "routed_scaling_factor": 2.5,
            "attention_bias": True,
        },
    ),
    "ernie4_5-moe": Case(
        "Ernie4_5_MoeConfig",
        {
            **BLOCKS,
            "moe_num_experts": 6,
            "moe_k": 3,
            "moe_intermediate_size": 32,
        },
        {"expert_shared_feed_forward_length": 64},
    ),
    "minimax-m2": Case(
        "MiniMaxM2Config",
        {**BLOCKS, "num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 16, "rotary_dim": 8},
        {"rope_dimension_count": 8, "expert_gating_func": ExpertGatingFuncType.SIGMOID},
    ),
    "falcon": Case("FalconConfig", BLOCKS),
    "falcon-grouped": Case(
        "FalconConfig", {**BLOCKS, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 2}
    ),
    "gpt2": Case("GPT2Config", {**BLOCKS}),
    "starcoder": Case("GPTBigCodeConfig", {**BLOCKS}),
    "gptneox": Case("GPTNeoXConfig", {**BLOCKS}),
    "gptneox-sequential": Case("GPTNeoXConfig", {**BLOCKS, "use_parallel_residual": False}),
    "bloom": Case("BloomConfig", {**BLOCKS, "n_head": 4}),
    "mpt": Case("MptConfig", {"hidden_size": 64, "max_seq_len": 512}),
    "gpt-oss": Case(
        "GptOssConfig",
        {
            **BLOCKS,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "sliding_window": 16,
            "rope_parameters": PLAIN,
        },
    ),
    "deepseek2-v2": Case(
        "DeepseekV2Config",
        {**LATENT, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "routed_scaling_factor": 2.5},
    ),
    "deepseek2": Case("DeepseekV3Config", LATENT),
}
"""Models whose tensors llama.cpp's converter joins, splits or transposes."""
DUAL: Mapping[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 2, "mamba_d_state": 16}
NEMOTRON: Mapping[str, Any] = {
    **BLOCKS,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "ssm_state_size": 16,
    "head_dim": 16,
}
DELTA: Mapping[str, Any] = {
    "shared_expert_intermediate_size": 32,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "num_hidden_layers": 4,
}
HYBRIDS: Mapping[str, Case] = {
    "mamba": Case("MambaConfig", {"hidden_size": 64, "intermediate_size": 128, "time_step_rank": 32}),
    "mamba-falcon": Case("FalconMambaConfig", {"hidden_size": 64, "intermediate_size": 128, "time_step_rank": 32}),
    "mamba2": Case(
        "Mamba2Config", {"hidden_size": 64, "num_heads": 4, "head_dim": 32, "n_groups": 2, "state_size": 16}
    ),
    "jamba": Case(
        "JambaConfig",
        {
            **BLOCKS,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_dt_rank": 32,
            "num_hidden_layers": 5,
            "use_mamba_kernels": False,
        },
    ),
    "falcon-h1": Case(
        "FalconH1Config",
        {
            **BLOCKS,
            **DUAL,
            "mamba_d_ssm": 128,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "head_dim": 16,
            "attention_in_multiplier": 0.5,
            "attention_out_multiplier": 0.25,
            "key_multiplier": 2.0,
            "ssm_in_multiplier": 2.0,
            "ssm_out_multiplier": 0.5,
            "ssm_multipliers": [0.5, 0.25, 2.0, 4.0, 0.125],
            "mlp_multipliers": [0.5, 2.0],
            "lm_head_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2": Case(
        "Lfm2Config",
        {**BLOCKS, "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    ),
    "lfm2moe": Case(
        "Lfm2MoeConfig",
        {
            **BLOCKS,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_dense_layers": 1,
            "moe_intermediate_size": 32,
        },
    ),
    "granitehybrid": Case(
        "GraniteMoeHybridConfig", {**BLOCKS, **DUAL, **HYBRID, "num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "granitehybrid-dense": Case(
        "GraniteMoeHybridConfig", {**BLOCKS, **DUAL, **HYBRID, "num_local_experts": 0, "shared_intermediate_size": 96}
    ),
    "nemotron_h": Case("NemotronHConfig", {**NEMOTRON, "layers_block_type": ["mamba", "attention", "mlp", "mamba"]}),
    "nemotron_h_moe": Case(
        "NemotronHConfig",
        {
            **NEMOTRON,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "moe"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "moe_shared_expert_intermediate_size": 96,
            "moe_latent_size": 32,
            "routed_scaling_factor": 2.5,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "qwen3next": Case("Qwen3NextConfig", {**QWEN2_MOE, **DELTA}),
    "qwen35": Case("Qwen3_5TextConfig", {**BLOCKS, **DELTA}),
    "qwen35moe": Case("Qwen3_5MoeTextConfig", {**QWEN2_MOE, **DELTA}),
}
"""Recurrent models and hybrids."""
