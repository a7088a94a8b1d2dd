"""GGUF metadata as config.json would say it: the same keys, the same meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
GEMMA3_LAYERS_PER_PATTERN = 6
GEMMA3_27B_LAYERS = 62


def translate(metadata: Mapping[str, Any], tensor_names: frozenset[str]) -> dict[str, Any]:
    """The config of a file. Raises ModelError naming what is unknown or missing.

    Whether embeddings are tied is not in the metadata: they are where the file has no output.weight.
    """
    arch = metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise ModelError(f"GGUF architecture {arch!r} is not supported; known are {', '.join(ARCHITECTURES)}")

    def need(key: str) -> Any:
        if f"{arch}.{key}" not in metadata:
            raise ModelError(f"the GGUF file has no {arch}.{key}")
        return metadata[f"{arch}.{key}"]

    heads, hidden = need("attention.head_count"), need("embedding_length")
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[arch]],
        "hidden_size": hidden,
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get(f"{arch}.attention.head_count_kv", heads),
        "head_dim": metadata.get(f"{arch}.attention.key_length", hidden // heads),
        "max_position_embeddings": need("context_length"),
        "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
        "vocab_size": metadata.get(f"{arch}.vocab_size", len(metadata.get("tokenizer.ggml.tokens", []))),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "rope_theta": metadata.get(f"{arch}.rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(metadata, arch, tensor_names),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _ends(metadata),
    }
    if metadata.get(f"{arch}.rope.dimension_count", config["head_dim"]) != config["head_dim"]:
        raise ModelError(f"the GGUF file rotates {arch}.rope.dimension_count of a head's dimensions: not supported")
    if arch == "gemma3":
        config |= _gemma3(metadata, config)
    return config


def _ends(metadata: Mapping[str, Any]) -> list[int] | None:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = {metadata[f"tokenizer.ggml.{key}"] for key in keys if f"tokenizer.ggml.{key}" in metadata}
    return sorted(ids) or None


def _rope_scaling(metadata: Mapping[str, Any], arch: str, names: frozenset[str]) -> dict[str, Any] | None:
    """llama.cpp bakes llama3's scaling into a tensor of factors, from which its parameters cannot be had back."""
    if "rope_freqs.weight" in names:
        raise ModelError("the GGUF file scales its rope by rope_freqs.weight (Llama 3.1 and later): not supported yet")
    kind = metadata.get(f"{arch}.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind != "linear":
        raise ModelError(f"GGUF rope scaling {kind!r} is not supported (only linear)")
    return {"rope_type": "linear", "factor": metadata[f"{arch}.rope.scaling.factor"]}


def _gemma3(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The 27B model alone scales queries by its hidden size over its heads; no key says so."""
    layers = config["num_hidden_layers"]
    large = layers == GEMMA3_27B_LAYERS
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if large
        else config["head_dim"],
        "sliding_window": metadata["gemma3.attention.sliding_window"],
        "layer_types": [
            "full_attention" if (i + 1) % GEMMA3_LAYERS_PER_PATTERN == 0 else "sliding_attention" for i in range(layers)
        ],
        "final_logit_softcapping": metadata.get("gemma3.final_logit_softcapping"),
    }
