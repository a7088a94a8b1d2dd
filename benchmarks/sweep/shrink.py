"""Configs of any class, made small."""

from __future__ import annotations

from typing import Any

MOST_PARAMETERS = 20_000_000
SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "ffn_dim": 64,
    "d_model": 64,
    "n_heads": 4,
    "n_layers": 2,
    "rotary_dim": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "word_embed_proj_dim": 64,
    "pad_token_id": 0,
    "attention_types": [[["global", "local"], 1]],
    "num_layers": 2,
    "depth": 1,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""By the names that configs have for them."""
SECOND: dict[str, Any] = {**SIZES, "num_key_value_heads": 4}
"""The same, for classes in which each head has keys of its own."""


def small_configs(kind: type[Any]) -> list[Any]:
    """Those that the class takes, the first to be tried first. What a config does not know is left out."""
    found = []
    for sizes in (SIZES, SECOND):
        config = kind(**_known(kind().to_dict(), sizes, kind))
        found.append(config)
    return found


def _known(defaults: dict[str, Any], sizes: dict[str, Any], kind: type[Any] | None = None) -> dict[str, Any]:
    """The sizes that a config has, and of the configs within it their types and sizes."""
    names = {*defaults, *getattr(kind, "attribute_map", {})}
    found = {name: value for name, value in sizes.items() if name in names}
    if "qk_rope_head_dim" in found:
        found.pop("head_dim", None)  # there it is what turns, and said by the other
    for name, value in defaults.items():
        if name.endswith("_config") and isinstance(value, dict):
            found[name] = {"model_type": value.get("model_type"), **_known(value, sizes)}
    return found
