"""GGUF metadata as config.json would say it: the same keys, the same meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import CONVERTED, LLAMA_CPP
from plimsoll_runtime.weights.gguf.families import GgufFamily, family_of

T = TypeVar("T", int, float, bool, str)

GEMMA3_LAYERS_PER_PATTERN = 6
GEMMA2_27B_LAYERS, GEMMA3_27B_LAYERS = 46, 62
_NEUTRAL: Mapping[str, Any] = {
    "attention.causal": True,
    "attention.sliding_window": 0,
    "attention.clamp_kqv": 0.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    "expert_weights_scale": 1.0,
    "nextn_predict_layers": 0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "use_parallel_residual": False,
}
"""Keys that are not computed here, with the value that changes nothing."""
_TURNED = "rope.dimension_count"
_NOTES = frozenset({"tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length"})
"""Keys that say nothing about the numbers by themselves."""


def translate(
    metadata: Mapping[str, Any], tensor_names: frozenset[str], rope_factors: Sequence[float] | None = None
) -> dict[str, Any]:
    """The config of a file. Raises ModelError naming what is unknown, missing or not of its type.

    `rope_factors` are the values of the tensor rope_freqs.weight. Whether embeddings are tied and which layers have
    biases is not in the metadata: the tensors' names say it.
    """
    family, arch = family_of(metadata), str(metadata["general.architecture"])
    pairs = _Pairs(metadata, arch)
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
    if arch == "gemma2":
        config["query_pre_attn_scalar"] = _query_scalar(config, GEMMA2_27B_LAYERS)
    if arch == "gemma3":
        config |= _gemma3(pairs, config)
    if arch == "falcon":
        config |= _falcon(config, tensor_names)
    if family.gating:
        _check_gating(pairs, family.gating)
    config["num_hidden_layers"] -= _guessing(config)
    pairs.refuse_others()
    return config


def _check_gating(pairs: _Pairs, wanted: int) -> None:
    if (found := pairs.get("expert_gating_func", int, wanted)) not in (0, wanted):
        raise ModelError(f"GGUF: expert_gating_func is {found}, and only {wanted} is supported for this architecture")


def _guessing(config: Mapping[str, Any]) -> int:
    """Layers that guess further tokens: the file counts them with the others, behind which they lie."""
    count: int = config.get("num_nextn_predict_layers", 0)
    if not 0 <= count < config["num_hidden_layers"]:
        raise ModelError(f"GGUF: nextn_predict_layers is {count} of {config['num_hidden_layers']} layers")
    return count


class _Pairs:
    """An architecture's pairs, typed, and what of them was read."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self._arch = arch
        self._values = {k.removeprefix(arch + "."): v for k, v in metadata.items() if k.startswith(arch + ".")}
        self._read: set[str] = set()
        tokens = metadata.get("tokenizer.ggml.tokens")
        self.tokens = len(tokens) if isinstance(tokens, list) else 0

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A value of a kind; a missing one is the default, and an error when there is none."""
        self._read.add(key)
        if key not in self._values:
            if default is None:
                raise ModelError(f"the GGUF file has no {self._arch}.{key}")
            return default
        value = self._values[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ModelError(f"GGUF: {self._arch}.{key} is {_shown(value)}, which is no {kind.__name__}")
        return value

    def has(self, key: str) -> bool:
        return key in self._values

    def raw(self, key: str) -> Any:
        """A value of any kind, or None."""
        self._read.add(key)
        return self._values.get(key)

    def refuse_others(self) -> None:
        """Refuse what nobody read: it could change the numbers."""
        for key, value in self._values.items():
            if key in self._read or key in _NOTES or (key in _NEUTRAL and value == _NEUTRAL[key]):
                continue
            raise ModelError(f"GGUF: {self._arch}.{key} = {_shown(value)} is not supported")


def _decoder(pairs: _Pairs, family: GgufFamily, names: frozenset[str]) -> dict[str, Any]:
    heads, hidden = pairs.get("attention.head_count", int), pairs.get("embedding_length", int)
    if heads < 1:
        raise ModelError(f"GGUF: attention.head_count is {heads}")
    head_dim = pairs.get("attention.key_length", int, hidden // heads)
    turned = pairs.get("rope.dimension_count", int, head_dim)
    for key, value in (
        ("attention.value_length", pairs.get("attention.value_length", int, head_dim)),
        (_TURNED, turned),
    ):
        if value != head_dim and not (key == _TURNED and family.partial and 0 < value < head_dim):
            raise ModelError(f"GGUF: {key} is {value}, but a head has {head_dim} dimensions: not supported")
    layers = pairs.get("block_count", int)
    if layers > len(names):
        raise ModelError(f"GGUF: block_count is {layers}, but the file has {len(names)} tensors")
    return {
        "hidden_size": hidden,
        "intermediate_size": pairs.get("feed_forward_length", int),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": pairs.get("attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "max_position_embeddings": pairs.get("context_length", int),
        family.epsilon: pairs.get(f"attention.layer_norm_{'' if family.layer_norms else 'rms_'}epsilon", float),
        "vocab_size": pairs.get("vocab_size", int, pairs.tokens),
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "use_qkv_bias": "blk.0.attn_q.bias" in names,
        "qkv_bias": "blk.0.attn_q.bias" in names,
        "attention_out_bias": "blk.0.attn_output.bias" in names,
        "use_bias": "blk.0.attn_output.bias" in names,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in names,
        "mlp_bias": "blk.0.ffn_down.bias" in names,
        **({"partial_rotary_factor": turned / head_dim} if family.partial else {}),
    }


def _ends(metadata: Mapping[str, Any]) -> list[int] | None:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    return sorted({value for value in found if isinstance(value, int)}) or None


def _rope_scaling(pairs: _Pairs, factors: Sequence[float] | None) -> dict[str, Any] | None:
    """llama.cpp bakes llama3's scaling into a tensor of factors; linear and yarn scaling have keys."""
    kind = pairs.get("rope.scaling.type", str, "none")
    if factors is not None:
        if kind != "none":
            raise ModelError(f"the GGUF file scales its rope twice: by rope_freqs.weight and as {kind!r}")
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


def _gemma3(pairs: _Pairs, config: Mapping[str, Any]) -> dict[str, Any]:
    softcap = pairs.get("final_logit_softcapping", float, 0.0)
    return {
        "query_pre_attn_scalar": _query_scalar(config, GEMMA3_27B_LAYERS),
        "sliding_window": pairs.get("attention.sliding_window", int),
        "rope_local_base_freq": pairs.get("rope.freq_base_swa", float, 10_000.0),
        "layer_types": _layer_types(pairs.raw("attention.sliding_window_pattern"), config["num_hidden_layers"]),
        "final_logit_softcapping": softcap or None,
    }


def _falcon(config: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The large ones have groups of heads, and a norm of its own before attention."""
    kv_heads, own_norm = config["num_key_value_heads"], "blk.0.attn_norm_2.weight" in names
    grouped = own_norm or kv_heads > 1
    return {
        "num_kv_heads": kv_heads,
        "multi_query": not grouped,
        "new_decoder_architecture": grouped,
        "num_ln_in_parallel_attn": 2 if own_norm else 1,
    }


def _query_scalar(config: Mapping[str, Any], layers_of_27b: int) -> int:
    """The 27B models alone scale queries by their hidden size over their heads; no key says so."""
    if config["num_hidden_layers"] == layers_of_27b:
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int(config["head_dim"])


def _layer_types(pattern: Any, layers: int) -> list[str]:
    """Which layers slide: every n-th does not, or a list says so for each; six where nothing is said."""
    if pattern is None:
        pattern = GEMMA3_LAYERS_PER_PATTERN
    if isinstance(pattern, int) and pattern > 0:
        sliding = [(i + 1) % pattern != 0 for i in range(layers)]
    elif isinstance(pattern, list):
        sliding = [bool(slides) for slides in pattern]
    else:
        raise ModelError(f"GGUF: attention.sliding_window_pattern is {_shown(pattern)}, which is no pattern")
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


def _shown(value: Any) -> str:
    """A value in an error, however long it is."""
    text = repr(value)
    return text if len(text) < 40 else text[:36] + " ..."
