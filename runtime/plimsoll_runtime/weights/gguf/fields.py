"""Typed access to an architecture's GGUF metadata. Unread keys are errors, since they could change the computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from plimsoll_runtime.errors import ModelError

T = TypeVar("T", int, float, bool, str)

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 4
"""Values of expert_gating_func in llama.cpp: how a router turns logits into expert weights."""
LAYERS_PER_PATTERN = 6
"""Gemma 3's pattern if a file has none: every sixth layer sees the full context."""
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
"""Keys that are accepted, although no code reads them, if they have these neutral values."""
_NOTES = frozenset({"tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length"})
"""Keys that do not affect the computation by themselves."""


class Pairs:
    """An architecture's metadata by key, typed. Remembers which keys were read."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self._arch = arch
        self._values = {k.removeprefix(arch + "."): v for k, v in metadata.items() if k.startswith(arch + ".")}
        self._read: set[str] = set()
        tokens = metadata.get("tokenizer.ggml.tokens")
        self.tokens = len(tokens) if isinstance(tokens, list) else 0

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return the value of a key as `kind`. A missing key gives the default, or ModelError if there is none."""
        self._read.add(key)
        if key not in self._values:
            if default is None:
                raise ModelError(f"the GGUF file has no key {self._arch}.{key}")
            return default
        value = self._values[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ModelError(f"GGUF: {self._arch}.{key} is {shown(value)}, but must be of type {kind.__name__}")
        return value

    def has(self, key: str) -> bool:
        return key in self._values

    def each(self, key: str, layers: int) -> list[int]:
        """Return one number for each layer; a single number applies to all. Raises ModelError for any other value."""
        value = self.raw(key)
        if isinstance(value, list) and len(value) == layers and all(type(n) is int and n >= 0 for n in value):
            return value
        if isinstance(value, list):
            raise ModelError(
                f"GGUF: {self._arch}.{key} is {shown(value)}, but must be one number for each of {layers} layers"
            )
        return [self.get(key, int)] * layers

    def raw(self, key: str) -> Any:
        """Return a value of any type, or None if the key is missing."""
        self._read.add(key)
        return self._values.get(key)

    def refuse_others(self) -> None:
        """Raise ModelError for a key that was not read: it could change the computation."""
        for key, value in self._values.items():
            if key in self._read or key in _NOTES or (key in _NEUTRAL and value == _NEUTRAL[key]):
                continue
            raise ModelError(f"GGUF: {self._arch}.{key} = {shown(value)} is not supported")


def sliding_layers(pattern: Any, layers: int) -> list[str]:
    """Return each layer's attention type.

    `pattern` n means that each n-th layer sees the full context; a list has an entry for each layer; None means 6.
    """
    if pattern is None:
        pattern = LAYERS_PER_PATTERN
    if isinstance(pattern, int) and pattern > 0:
        sliding = [(i + 1) % pattern != 0 for i in range(layers)]
    elif isinstance(pattern, list):
        sliding = [bool(slides) for slides in pattern]
    else:
        raise ModelError(
            f"GGUF: attention.sliding_window_pattern is {shown(pattern)}; it must be a positive number or a list"
        )
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


def shown(value: Any) -> str:
    """Return a value's repr for an error message, truncated to 40 characters."""
    text = repr(value)
    return text if len(text) < 40 else text[:36] + " ..."
