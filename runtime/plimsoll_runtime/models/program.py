"""A decoder as a program of ops over named values, with its facts and a text form."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import prod
from typing import Any, Protocol

import torch

from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.heads import Rotate
from plimsoll_runtime.models.ops.logits import Logits, NoLogits
from plimsoll_runtime.models.ops.mla import Absorb
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.pooling_head import PooledHead
from plimsoll_runtime.models.ops.weight import Weight, weights_in
from plimsoll_runtime.models.spec.attention import AttentionShape, RopeSpec
from plimsoll_runtime.models.spec.pooling import Pooling
from plimsoll_runtime.models.spec.recurrent import OwnCache, StateShape

_UNSAID = ("reads", "writes", "kind", "width")
"""Record fields that `text_of` leaves out."""
_OF_MANY = re.compile(r"(?<=experts\.)\d+(?=\.)|(?<=\[)\d+(?=\]$)")
"""An expert's number in a tensor name, or the index in a stack."""


def text_of(op: Any, reads: tuple[str, ...]) -> str:
    """Return an op as text: its name, values, tensors, and the fields that differ from their defaults."""
    said = [
        f"{field.name}={_value(value)}"
        for field in fields(op)
        if field.name not in _UNSAID
        and not any(weights_in([value := getattr(op, field.name)]))
        and _says(value, field.default)
    ]
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(op).__name__).lstrip("_")
    tensors = dict.fromkeys(_OF_MANY.sub("*", str(weight)) for weight in op.weights())
    return f"{name}({', '.join([*reads, *tensors, *said])})"


def _says(value: object, default: object) -> bool:
    return value not in (None, ()) and value != default


def _value(value: Any) -> str:
    """Return a value as text; a record by its fields that differ from their defaults."""
    if not hasattr(value, "__dataclass_fields__"):
        return f"{value:g}" if isinstance(value, float) else str(value)
    said = [(field.name, getattr(value, field.name), field.default) for field in fields(value)]
    return f"({', '.join(f'{name}={_value(v)}' for name, v, default in said if v != default)})"


RESIDUAL_ROWS = 3
"""Hidden states per row that exist at once next to an op's own memory: residual, addend and normalised states."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of a decoder that scheduler, cache and runner need, independent of its executor.

    - `attention`: the shape of each cached attention layer.
    - `states`: the recurrent states of a sequence.
    - `own`: caches that the decoder keeps itself, one entry for each element size. If there are any, KV blocks are
      counted but hold nothing.
    - `whole`: the shape of each layer with bidirectional attention. Then a step computes a whole prompt and keeps
      nothing.
    - `pooling`: the pooling of a model that does not generate.
    - `second_text`: offset of the token ids of a prompt's second text; 0 if the model does not distinguish texts.
    - `stages`: of the program of a pipeline's stage, the shapes of all stages' attention layers; `attention` has those
      of stage number `stage`.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    max_positions: int
    attention: tuple[AttentionShape, ...]
    states: tuple[StateShape, ...] = ()
    own: tuple[OwnCache, ...] = ()
    whole: tuple[AttentionShape, ...] = ()
    pooling: Pooling | None = None
    second_text: int = 0
    stages: tuple[tuple[AttentionShape, ...], ...] = ()
    stage: int = 0

    @property
    def keeps_only_blocks(self) -> bool:
        """Whether a sequence has only KV blocks: no recurrent states, and no caches that the decoder keeps itself."""
        return not self.states and not self.own

    def token_bytes(self, element_bytes: int) -> int:
        """Return the bytes of a cached token: keys and values of all layers, and in caches that the decoder keeps."""
        in_blocks = sum(shape.cached_width for shape in self.attention) * element_bytes
        return in_blocks + sum(each.token for each in self.own if each.element_bytes == element_bytes)

    def state_bytes(self, element_bytes: int) -> int:
        """Return the bytes of a sequence's recurrent states and own caches, independent of its length."""
        states = sum(state.nbytes(element_bytes) for state in self.states)
        return states + sum(each.sequence for each in self.own if each.element_bytes == element_bytes)


@dataclass(frozen=True, slots=True)
class Program:
    """A decoder as `ops` in order; `head` reads the hidden states that the last op writes. `str()` gives a line for
    each op.

    - `layers`: the index in `ops` where each layer starts, and the end of the last one.
    - `ignored`: name suffixes of tensors in the files that are not read; `beyond`: name prefixes of such tensors.
    - `is_part`: the files are of a larger (multimodal) model.
    - `lasting`: columns of values that exist during all layers, in addition to the hidden states.
    - `tied`: the names of the head's matrix, which the files may lack, and of the embedding used instead; None if the
      head does not use the embedding.
    - `elsewhere`: of a rank's program, the tensors that only other ranks read.
    - `first_layer`: of the program of a pipeline's stage, the number of its first layer.
    """

    facts: Facts
    ops: tuple[Op, ...]
    head: Logits | NoLogits | PooledHead
    layers: tuple[int, ...] = ()
    ignored: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    is_part: bool = False
    lasting: int = 0
    tied: tuple[str, str] | None = None
    elsewhere: tuple[Weight, ...] = ()
    first_layer: int = 0

    @property
    def result(self) -> str:
        """Name of the value that the last op writes."""
        return self.ops[-1].writes[0]

    @property
    def outputs(self) -> int:
        """Columns of the head's output."""
        return self.head.outputs if isinstance(self.head, PooledHead) else self.facts.vocab_size

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """Each distinct rope once."""
        return tuple(dict.fromkeys(_ropes(self.ops)))

    def weights(self) -> dict[str, Weight]:
        """Return the tensors that ops and head read, each once, by name. In a stack, the name includes the index."""
        return {str(weight): weight for weight in self._weights()}

    def shared(self) -> frozenset[str]:
        """Return the names (as in `weights`) of tensors that several ops read."""
        counts = Counter(map(str, self._weights()))
        return frozenset(name for name, count in counts.items() if count > 1)

    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the tensors that the files must have, with their shapes there."""
        return {weight.name: weight.stored_shape for weight in (*self._weights(), *self.elsewhere)}

    def weight_shapes(self, dtype: torch.dtype) -> Iterator[tuple[tuple[int, ...], torch.dtype]]:
        """Yield the shape of each loaded tensor, and its dtype if the model runs in `dtype`."""
        return ((w.shape, w.dtype(dtype)) for w in self.weights().values())

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of all loaded tensors."""
        return sum(prod(shape) * kept.itemsize for shape, kept in self.weight_shapes(dtype))

    @property
    def repacks(self) -> bool:
        return True

    def step_cost(self, plan: StepPlan, element_bytes: int) -> Mapping[OpKind, OpCost]:
        """Return the cost of a step by kind of op, summed over all layers.

        The head is missing if no row needs logits.
        """
        spans = [(s.start, s.start + len(s.token_ids)) for s in plan.sequences]
        logits = sum(s.sample + len(s.prompt_targets) for s in plan.sequences)
        rows = StepRows(plan.num_tokens, logits, spans)
        there = {op.kind for op in self.ops}
        costs: dict[OpKind, OpCost] = {kind: OpCost() for kind in OpKind if kind in there}
        for op in self.ops:
            costs[op.kind] += op.cost(rows, element_bytes)
        if logits:
            costs[OpKind.HEAD] = self.head.cost(rows, element_bytes)
        return costs

    def row_bytes(self, size: int) -> int:
        """Return the peak bytes per row of computing a step op by op in torch."""
        lasting = RESIDUAL_ROWS * self.facts.hidden_size + self.lasting
        return lasting * size + max(op.row_bytes(size) for op in self.ops)

    def beside_rows(self, size: int, rows: int, longest: int) -> int:
        return 0

    def logits_bytes(self, size: int) -> int:
        """Return the bytes of a row of logits in torch: the product in the run's dtype, and the float32 copies.

        Of a pooling model, those of a row in its head.
        """
        if isinstance(self.head, PooledHead):
            return self.head.row_bytes()
        if isinstance(self.head, NoLogits):
            return 0
        return self.head.width * (FLOAT32 * (1 + self.head.copies()) + (size if size != FLOAT32 else 0))

    def __str__(self) -> str:
        lines = [f"{', '.join(op.writes)} = {text_of(op, op.reads)}" for op in self.ops]
        if isinstance(self.head, Logits):
            part = self.head.part
            tokens = "" if part is None else f" of tokens {part[0]} to {part[1] - 1}"
            return "\n".join([*lines, f"logits = {text_of(self.head, (self.result,))}{tokens}"])
        if isinstance(self.head, NoLogits):
            return "\n".join([*lines, "logits: on other ranks"])
        assert self.facts.pooling is not None
        lines.append(f"pooled = {self.facts.pooling.kind}({self.result})")
        lines += [f"pooled = {text_of(part, ('pooled',))}" for part in self.head.parts]
        return "\n".join([*lines, *(["pooled = normalised(pooled)"] if self.head.normalised else [])])

    def _weights(self) -> Iterator[Weight]:
        for op in self.ops:
            yield from op.weights()
        yield from self.head.weights()


def _ropes(ops: Sequence[Op]) -> Iterator[RopeSpec]:
    for op in ops:
        if isinstance(op, Rotate):
            yield op.rope
        elif isinstance(op, Absorb):
            yield op.attention.rope


class Outline(Protocol):
    """Facts and sizes of a model before it is loaded. A Program is one; `transformers_code.outline` has another."""

    @property
    def facts(self) -> Facts:
        """Properties for scheduler, cache and runner."""

    def weight_shapes(self, dtype: torch.dtype) -> Iterable[tuple[tuple[int, ...], torch.dtype]]:
        """Yield the shape of each loaded tensor, and its dtype if the model runs in `dtype`."""

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of all loaded tensors."""

    @property
    def repacks(self) -> bool:
        """Whether torch packs matrices on a CPU in addition to the plain copies in an image."""

    def row_bytes(self, size: int) -> int:
        """Return the peak bytes per row of a step in torch, for elements of `size` bytes."""

    def beside_rows(self, size: int, rows: int, longest: int) -> int:
        """Return bytes of a step in addition to `row_bytes`, for `rows` rows in sequences of at most `longest`
        tokens.
        """

    def logits_bytes(self, size: int) -> int:
        """Return the bytes of a row of logits in torch, including the copies on the way to float32."""


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""A layer's number in a tensor name."""
_OWN_NUMBER = re.compile(r"\b(layer|state|part)=\d+")
"""Number of a cache, a state or a per-layer input, which differs for each op."""


def summary(program: Program) -> str:
    """Return the program as text with a line for each op. Equal layers are merged, with `{}` for their number."""
    return "\n".join(_lines(program))


def _lines(program: Program) -> Iterator[str]:
    lines = str(program).splitlines()
    alike: dict[tuple[str, ...], list[int]] = {}
    for number, (first, end) in enumerate(pairwise(program.layers), program.first_layer):
        alike.setdefault(tuple(_of_any(line, number) for line in lines[first:end]), []).append(number)
    yield from lines[: program.layers[0]]
    for layer, numbers in alike.items():
        yield f"layers {_ranges(numbers)}:"
        yield from (f"  {line}" for line in layer)
    yield from lines[program.layers[-1] :]


def _of_any(line: str, number: int) -> str:
    named = _NUMBER.sub(lambda found: "{}" if found[0] == str(number) else found[0], line)
    return _OWN_NUMBER.sub(r"\1={}", named)


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: 0, 1, 2 and 5 as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
