"""The outline of a model that runs on Transformers code, found by probing the code before weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import torch

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import MAX_LAYERS
from plimsoll_runtime.models.program import RESIDUAL_ROWS, Facts
from plimsoll_runtime.models.transformers_code.attention_interface import NAME
from plimsoll_runtime.models.transformers_code.cache_calls import Findings
from plimsoll_runtime.models.transformers_code.cache_probe import probe as probe_own
from plimsoll_runtime.models.transformers_code.model_classes import UnservedError, class_of, refused
from plimsoll_runtime.models.transformers_code.probe import probe
from plimsoll_runtime.models.transformers_code.skeleton import skeleton, stored_tensors

FLOAT32 = 4
_WIDE = 4
"""Widest results that exist at once: gate, up projection, activation and their product."""
_LOGITS = 3
"""Copies of logits in the run's dtype: product, scaled, capped."""
_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "context_length",
)
ANY_LENGTH = 2**20
"""Longest sequence of a class without positions but with its own cache, which has no limit."""
ANEW_LENGTH = 2048
"""Longest sequence of a class without a cache, which computes all tokens in each step."""
_CHANGING_ROPES = ("dynamic", "longrope")
"""Ropes whose angles change beyond a length: cached keys would have to be rotated again."""


@dataclass(frozen=True, slots=True)
class StoredShape:
    """A tensor by its name in Transformers. `dtype` is set if it is independent of the run's dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None


@dataclass(frozen=True, slots=True)
class TransformersOutline:
    """Outline of a model on Transformers code.

    - `tensors`: the checkpoint's tensors, each once, in the order of its modules.
    - `widest`: elements per row of the model's largest intermediate result.
    - `base`: the name of the submodule that returns hidden states.
    - `own`: probe results of a model with its own caches; None if it uses our attention.
    - `code`: the folder of the model's own code, if that may run.
    """

    facts: Facts
    base: str
    tensors: tuple[StoredShape, ...]
    widest: int
    config: Mapping[str, Any] = field(repr=False, compare=False)
    own: Findings | None = None
    code: Path | None = field(default=None, repr=False, compare=False)

    def weight_shapes(self, dtype: torch.dtype) -> Iterator[tuple[tuple[int, ...], torch.dtype]]:
        return ((tensor.shape, tensor.dtype or dtype) for tensor in self.tensors)

    def weight_bytes(self, dtype: torch.dtype) -> int:
        return sum(prod(shape) * kept.itemsize for shape, kept in self.weight_shapes(dtype))

    @property
    def repacks(self) -> bool:
        return False

    def row_bytes(self, size: int) -> int:
        return (RESIDUAL_ROWS * self.facts.hidden_size + _WIDE * self.widest) * size

    def beside_rows(self, size: int, rows: int, longest: int) -> int:
        """Return the bytes of scores of a class with its own attention, and of rows that are computed again; 0 with
        ours.
        """
        if self.own is None:
            return 0
        anew = max(0, self.own.at_least(0, longest) - rows) if self.own.calling.cache is None else 0
        return anew * self.row_bytes(size) + self.own.scores_bytes(rows, longest)

    def logits_bytes(self, size: int) -> int:
        return self.facts.vocab_size * (FLOAT32 + _LOGITS * size)

    def __str__(self) -> str:
        if self.own is not None:
            return f"{self.facts.architecture}, run by Transformers code with its own caches: {self.own}"
        lines = [f"{self.facts.architecture}, run by Transformers code with our attention:"]
        for shape, run in groupby(enumerate(self.facts.attention), key=lambda each: each[1]):
            first, *_, last = (number for number, _ in (*run,) * 2)
            lines.append(f"  layers {first}-{last}: {shape}")
        return "\n".join(lines)


def transformers_outline(config: Mapping[str, Any], code: Path | None = None) -> TransformersOutline:
    """Return the outline of a config. `code`: the folder of the model's own code, if that may run.

    Raises ModelError naming the architecture and the reason why Transformers code cannot serve it.
    """
    kind, theirs = class_of(config, code)
    if not 0 < (layers := getattr(theirs.get_text_config(), "num_hidden_layers", 1)) <= MAX_LAYERS:
        raise ModelError(f"config.json: num_hidden_layers is {layers}; it must be from 1 to {MAX_LAYERS}")
    try:
        return replace(_over_blocks(kind, theirs, config), code=code)
    except UnservedError as error:
        reason = str(error)
    try:
        return replace(_with_caches(kind, theirs, config), code=code)
    except UnservedError as error:
        no_program = f"Plimsoll has no program for it, and Transformers code {reason}"
        raise refused(kind.__name__, f"{no_program}; with its own caches, it {error}") from error


def _over_blocks(kind: type[Any], theirs: Any, config: Mapping[str, Any]) -> TransformersOutline:
    """Return the outline of a class that can use our attention. Raises UnservedError otherwise."""
    found = probe(kind, theirs)
    positions = _positions(theirs.get_text_config())
    if positions is None:
        raise UnservedError(f"has no field with the number of positions ({', '.join(_POSITIONS)})")
    facts = Facts(kind.__name__, found.vocab_size, found.hidden_size, positions, found.attention)
    return TransformersOutline(facts, found.base, _tensors(kind, theirs, NAME), found.widest, config)


def _with_caches(kind: type[Any], theirs: Any, config: Mapping[str, Any]) -> TransformersOutline:
    """Return the outline of a class with its own caches. Raises UnservedError if it cannot be served."""
    found = probe_own(kind, theirs)
    positions = _positions(theirs.get_text_config()) or (ANY_LENGTH if found.calling.cache else ANEW_LENGTH)
    facts = Facts(kind.__name__, found.vocab_size, found.hidden_size, positions, (), own=found.kept)
    return TransformersOutline(facts, found.calling.base, _tensors(kind, theirs, None), found.widest, config, found)


def _positions(config: Any) -> int | None:
    """Return the most tokens of a sequence; None if no field has it."""
    found = next((n for name in _POSITIONS if type(n := getattr(config, name, None)) is int and n > 0), None)
    if found is None:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    for each in (rope, *(value for value in rope.values() if isinstance(value, Mapping))):
        if each.get("rope_type") in _CHANGING_ROPES:
            borders = (
                each.get("original_max_position_embeddings"),
                getattr(config, "original_max_position_embeddings", 0),
            )
            found = min([found, *(b for b in borders if b)])
    return found


def _tensors(kind: type[Any], config: Any, attention: str | None) -> tuple[StoredShape, ...]:
    """Return the tensors of a class. Some stay float32, because the class requires it; some are not floating point."""
    model = skeleton(kind, config, torch.bfloat16, attention=attention)
    return tuple(
        StoredShape(name, tuple(tensor.shape), _own_dtype(model, name, tensor))
        for name, tensor in stored_tensors(model)
    )


def _own_dtype(model: Any, name: str, tensor: torch.Tensor) -> torch.dtype | None:
    if not tensor.is_floating_point():
        return tensor.dtype
    strict = model._keep_in_fp32_modules_strict or ()
    return torch.float32 if any(part in name.split(".") for part in strict) else None
