"""Translates GGUF metadata to a config.json with the same keys and meanings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import CONVERTED, LLAMA_CPP
from plimsoll_runtime.weights.gguf.families import GgufFamily, family_of
from plimsoll_runtime.weights.gguf.fields import Pairs

_TURNED = "rope.dimension_count"
_SAMPLING = {"temperature": "temp", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p"}


def translate(
    metadata: Mapping[str, Any], tensor_names: frozenset[str], rope_factors: Sequence[float] | None = None
) -> dict[str, Any]:
    """Return the config of a file, with the keys of config.json. Raises ModelError naming a key that is unknown,
    missing or of the wrong type.

    `rope_factors` are the values of the tensor rope_freqs.weight. The metadata do not say whether embeddings are tied
    or which layers have biases; the names of the tensors do.
    """
    family, pairs = family_of(metadata), Pairs(metadata, str(metadata["general.architecture"]))
    said = {field: pairs.get(key.name, key.kind, key.default) for field, key in family.keys.items()}
    config = _decoder(pairs, family, tensor_names) | {
        **family.fixed,
        **said,
        "architectures": [family.architecture],
        CONVERTED: LLAMA_CPP,
        "rope_theta": pairs.get("rope.freq_base", float, 10_000.0),
        "rope_scaling": _rope_scaling(pairs, rope_factors),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _ends(metadata),
    }
    if family.more is not None:
        config |= family.more(pairs, tensor_names, config)
    if family.gating:
        _check_gating(pairs, family.gating)
    config["num_hidden_layers"] -= _guessing(config)
    pairs.refuse_others()
    return config


def sampling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling defaults of a file with the keys of generation_config.json.

    The repetition penalty is left out: llama.cpp applies it to the last tokens only.
    """
    named = {key: metadata.get(f"general.sampling.{theirs}") for key, theirs in _SAMPLING.items()}
    return {key: value for key, value in named.items() if value is not None}


def _check_gating(pairs: Pairs, wanted: int) -> None:
    if (found := pairs.get("expert_gating_func", int, wanted)) not in (0, wanted):
        raise ModelError(f"GGUF: expert_gating_func is {found}; this architecture supports only {wanted}")


def _guessing(config: Mapping[str, Any]) -> int:
    """Return the number of layers for multi-token prediction, which the file counts in block_count, after the others.
    Raises ModelError if it is negative or not less than that count.
    """
    count: int = config.get("num_nextn_predict_layers", 0)
    if not 0 <= count < config["num_hidden_layers"]:
        raise ModelError(
            f"GGUF: nextn_predict_layers is {count}, but the model has {config['num_hidden_layers']} layers"
        )
    return count


def _decoder(pairs: Pairs, family: GgufFamily, names: frozenset[str]) -> dict[str, Any]:
    hidden, layers = pairs.get("embedding_length", int), pairs.get("block_count", int)
    if not 0 < layers <= len(names):
        raise ModelError(f"GGUF: block_count is {layers}, but the file has {len(names)} tensors")
    wide = "feed_forward_length"  # mixtures without a dense MLP need not have this key
    inner = pairs.each(wide, layers) if family.by_layer else [pairs.get(wide, int, 0 if family.gating else None)]
    return {
        "hidden_size": hidden,
        "intermediate_size": max(inner),
        "num_hidden_layers": layers,
        "max_position_embeddings": pairs.get("context_length", int),
        family.epsilon: pairs.get(f"attention.layer_norm_{'' if family.layer_norms else 'rms_'}epsilon", float),
        "vocab_size": pairs.get("vocab_size", int, pairs.tokens),
        "tie_word_embeddings": "output.weight" not in names,
        "attention_out_bias": "blk.0.attn_output.bias" in names,
        "use_bias": "blk.0.attn_output.bias" in names,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in names,
        "mlp_bias": "blk.0.ffn_down.bias" in names,
        **dict.fromkeys(("attention_bias", "use_qkv_bias", "qkv_bias"), "blk.0.attn_q.bias" in names),
        **(_heads(pairs, family, hidden, layers) if family.plain_heads else {}),
    }


def _heads(pairs: Pairs, family: GgufFamily, hidden: int, layers: int) -> dict[str, Any]:
    heads = pairs.get("attention.head_count", int)
    if heads < 1:
        raise ModelError(f"GGUF: attention.head_count is {heads}; it must be at least 1")
    if (head_dim := pairs.get("attention.key_length", int, hidden // heads)) < 1:
        raise ModelError(f"GGUF: attention heads have {head_dim} dimensions; they need at least 1")
    turned = pairs.get(_TURNED, int, head_dim)
    for key, value in (
        ("attention.value_length", pairs.get("attention.value_length", int, head_dim)),
        (_TURNED, turned),
    ):
        if value != head_dim and not (key == _TURNED and family.partial and 0 < value < head_dim):
            raise ModelError(f"GGUF: {key} is {value}, which is not supported for heads of {head_dim} dimensions")
    shared = "attention.head_count_kv"
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": max(pairs.each(shared, layers)) if family.by_layer else pairs.get(shared, int, heads),
        "head_dim": head_dim,
        **({"partial_rotary_factor": turned / head_dim} if family.partial else {}),
    }


def _ends(metadata: Mapping[str, Any]) -> list[int] | None:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    return sorted({value for value in found if isinstance(value, int)}) or None


def _rope_scaling(pairs: Pairs, factors: Sequence[float] | None) -> dict[str, Any] | None:
    """Return the rope scaling. llama3 scaling is a tensor of factors (`factors`); linear and yarn scaling have keys."""
    kind = pairs.get("rope.scaling.type", str, "none")
    if factors is not None:
        if kind != "none":
            raise ModelError(
                f"the GGUF file has two rope scalings: the tensor rope_freqs.weight and {kind!r}; only one is supported"
            )
        return {"rope_type": "frequency_factors", "frequency_factors": list(factors)}
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": pairs.get("rope.scaling.factor", float)}
    if kind == "linear":
        return scaling
    if kind != "yarn":
        raise ModelError(f"GGUF rope scaling {kind!r} is not supported (only linear and yarn)")
    original = pairs.get("rope.scaling.original_context_length", int)
    return scaling | {
        "original_max_position_embeddings": original,
        "beta_fast": pairs.get("rope.scaling.yarn_beta_fast", float, 32.0),
        "beta_slow": pairs.get("rope.scaling.yarn_beta_slow", float, 1.0),
    }
