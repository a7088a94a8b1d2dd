"""An architecture's pairs of metadata, typed; what nobody reads is refused, for it could change the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from plimsoll_runtime.errors import ModelError

T = TypeVar("T", int, float, bool, str)

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 4
"""Of expert_gating_func: what makes the weights of experts of a router's logits, by llama.cpp's numbers."""
LAYERS_PER_PATTERN = 6
"""Of Gemma 3, where a file does not say which of its layers slide."""
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
_NOTES = frozenset({"tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length"})
"""Keys that say nothing about the numbers by themselves."""


class Pairs:
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
            raise ModelError(f"GGUF: {self._arch}.{key} is {shown(value)}, which is no {kind.__name__}")
        return value

    def has(self, key: str) -> bool:
        """Whether it is there."""
        return key in self._values

    def each(self, key: str, layers: int) -> list[int]:
        """A number for each layer, or one for all of them. Raises ModelError for anything else."""
        value = self.raw(key)
        if isinstance(value, list) and len(value) == layers and all(type(n) is int and n >= 0 for n in value):
            return value
        if isinstance(value, list):
            raise ModelError(
                f"GGUF: {self._arch}.{key} is {shown(value)}, and not a number for each of {layers} layers"
            )
        return [self.get(key, int)] * layers

    def raw(self, key: str) -> Any:
        """A value of any kind, or None."""
        self._read.add(key)
        return self._values.get(key)

    def refuse_others(self) -> None:
        """Refuse what nobody read: it could change the numbers."""
        for key, value in self._values.items():
            if key in self._read or key in _NOTES or (key in _NEUTRAL and value == _NEUTRAL[key]):
                continue
            raise ModelError(f"GGUF: {self._arch}.{key} = {shown(value)} is not supported")


def sliding_layers(pattern: Any, layers: int) -> list[str]:
    """Which layers slide: every n-th does not, or a list says so for each; six where nothing is said."""
    if pattern is None:
        pattern = LAYERS_PER_PATTERN
    if isinstance(pattern, int) and pattern > 0:
        sliding = [(i + 1) % pattern != 0 for i in range(layers)]
    elif isinstance(pattern, list):
        sliding = [bool(slides) for slides in pattern]
    else:
        raise ModelError(f"GGUF: attention.sliding_window_pattern is {shown(pattern)}, which is no pattern")
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


def shown(value: Any) -> str:
    """A value in an error, however long it is."""
    text = repr(value)
    return text if len(text) < 40 else text[:36] + " ..."
