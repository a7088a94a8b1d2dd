"""Models of many families, whose programs are divided among ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from model_support.tiny import COMMON

from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import MODEL_TYPES, describe


@dataclass(frozen=True)
class Model:
    """A config by its class in Transformers.

    `refused`: a pattern of the expected error, if it cannot be divided among tensor-parallel ranks.
    """

    config: str
    values: Mapping[str, Any] = field(default_factory=dict)
    refused: str | None = None

    def program(self) -> Program:
        import transformers

        values = getattr(transformers, self.config)(**{**COMMON, **self.values}).to_dict()
        return program_of(describe({**values, "architectures": [MODEL_TYPES[values["model_type"]]]}))


WINDOW: Mapping[str, Any] = {"sliding_window": 16, "num_hidden_layers": 4, "head_dim": 16}
GPT: Mapping[str, Any] = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 256}
EXPERTS: Mapping[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MODELS: Mapping[str, Model] = {
    "llama": Model("LlamaConfig"),
    "llama-biases": Model("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "qwen2-14-heads": Model("Qwen2Config", {"hidden_size": 112, "num_attention_heads": 14}),
    "qwen3": Model("Qwen3Config", {"head_dim": 16, "num_key_value_heads": 4}),
    "three-key-heads": Model("LlamaConfig", {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}),
    "gemma3-one-key-head": Model("Gemma3TextConfig", {**WINDOW, "num_key_value_heads": 1}),
    "gemma4-values-of-keys": Model(
        "Gemma4TextConfig",
        {
            **WINDOW,
            "global_head_dim": 32,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "vocab_size_per_layer_input": 20,
            "hidden_size_per_layer_input": 8,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "num_kv_shared_layers": 1,
        },
    ),
    "gpt2-transposed": Model("GPT2Config", GPT),
    "gpt-neox-interleaved": Model("GPTNeoXConfig", {"hidden_size": 64}),
    "falcon-one-key-head": Model("FalconConfig", {"bias": True}),
    "falcon-groups": Model("FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-alibi": Model("FalconConfig", {"alibi": True, "hidden_size": 96, "num_attention_heads": 6, "bias": True}),
    "bloom": Model("BloomConfig", {"n_layer": 2, "n_head": 6}),
    "mpt-clip": Model("MptConfig", {"d_model": 48, "n_layers": 2, "n_heads": 6, "attn_config": {"clip_qkv": 1.5}}),
    "gpt-bigcode": Model("GPTBigCodeConfig", GPT),
    "codegen-shards": Model("CodeGenConfig", {**GPT, "rotary_dim": 8, "n_ctx": 256}),
    "phi3-fused": Model("Phi3Config"),
    "opt": Model("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 48, "pad_token_id": 1}),
    "cohere-own-norms": Model("CohereConfig", {"use_qk_norm": True, "attention_bias": True, "logit_scale": 0.5}),
    "granite": Model("GraniteConfig", {"attention_bias": True, "residual_multiplier": 0.3}),
    "mixtral": Model("MixtralConfig", {"num_local_experts": 4}),
    "gpt-oss": Model("GptOssConfig", {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe-shared": Model("Qwen2MoeConfig", {**EXPERTS, "shared_expert_intermediate_size": 32}),
    "llama4": Model(
        "Llama4TextConfig",
        {"num_local_experts": 4, "intermediate_size_mlp": 80, "head_dim": 12, "attention_chunk_size": 16},
    ),
    "olmo2-norm-over-all-heads": Model("Olmo2Config", refused="NormHeads|HeadNorm with together"),
    "gemma3n-sparse": Model(
        "Gemma3nTextConfig",
        {
            **WINDOW,
            "num_kv_shared_layers": 0,
            "vocab_size_per_layer_input": 20,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0],
        },
        refused="Sparsify",
    ),
    "deepseek-latent": Model("YoutuConfig", refused="Latent"),
    "mamba": Model("MambaConfig", refused="recurrent layers"),
}
