"""A decoder as a program of ops over named values, the facts that the rest of the engine needs, and its text for
people.
"""

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
from plimsoll_runtime.models.ops.logits import Logits
from plimsoll_runtime.models.ops.mla import Absorb
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.pooling_head import PooledHead
from plimsoll_runtime.models.ops.weight import Weight, weights_in
from plimsoll_runtime.models.spec.attention import AttentionShape, RopeSpec
from plimsoll_runtime.models.spec.pooling import Pooling
from plimsoll_runtime.models.spec.recurrent import OwnCache, StateShape

_UNSAID = ("reads", "writes", "kind", "width")
"""Of every record: what stands elsewhere in its line, or in that of another op."""
_OF_MANY = re.compile(r"(?<=experts\.)\d+(?=\.)|(?<=\[)\d+(?=\]$)")
"""An expert's number, where each has a tensor of its own, and a tensor's in a stack."""


def text_of(op: Any, reads: tuple[str, ...]) -> str:
    """Its name, the values that it reads, its tensors, and whatever of its record says something."""
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
    """A record by its fields that say something."""
    if not hasattr(value, "__dataclass_fields__"):
        return f"{value:g}" if isinstance(value, float) else str(value)
    said = [(field.name, getattr(value, field.name), field.default) for field in fields(value)]
    return f"({', '.join(f'{name}={_value(v)}' for name, v, default in said if v != default)})"


RESIDUAL_ROWS = 3
"""Rows of hidden states that live at once beside what an op allocates: the residual, what is added, what is normed."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What scheduler, cache and runner know of a decoder, whatever computes it.

    `attention`: one a cached layer. `states`: what its recurrent layers keep of a sequence. `own`: of a decoder that
    keeps caches by itself, what they take; then blocks are what is counted, and hold nothing.
    `whole`: one a layer that sees a prompt from both ends: then a prompt is computed in one step, and nothing is kept.
    `pooling`: nothing is generated, and this is what becomes of a prompt. `second_text`: token ids of the second text
    that a prompt may hold are larger by so much; 0: a model that does not tell texts apart.
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

    @property
    def keeps_only_blocks(self) -> bool:
        """Whether all that is kept of a sequence lies in blocks."""
        return not self.states and not self.own

    def token_bytes(self, element_bytes: int) -> int:
        """Keys and values of one token in all layers."""
        in_blocks = sum(shape.cached_width for shape in self.attention) * element_bytes
        return in_blocks + sum(each.token for each in self.own if each.element_bytes == element_bytes)

    def state_bytes(self, element_bytes: int) -> int:
        """What is kept of a sequence however long it is: by recurrent layers, or by the decoder itself."""
        states = sum(state.nbytes(element_bytes) for state in self.states)
        return states + sum(each.sequence for each in self.own if each.element_bytes == element_bytes)


@dataclass(frozen=True, slots=True)
class Program:
    """`ops` in order, the last of which writes the hidden states that `head` reads. Printed, it is a line an op.

    `layers`: where each layer begins in `ops`, and where the last one ends. `ignored`: tensors of the files whose names
    end so are not read; `beyond`: those whose names begin so. `is_part`: the files are of a larger model. `lasting`:
    columns of values that live through all layers, beside the states. `tied`: the names of a head's matrix that the
    files need not have, and of the embedding that stands for it.
    """

    facts: Facts
    ops: tuple[Op, ...]
    head: Logits | PooledHead
    layers: tuple[int, ...] = ()
    ignored: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    is_part: bool = False
    lasting: int = 0
    tied: tuple[str, str] | None = None

    @property
    def result(self) -> str:
        """The value that the last op writes."""
        return self.ops[-1].writes[0]

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for a row."""
        return self.head.outputs if isinstance(self.head, PooledHead) else self.facts.vocab_size

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """Each kind of rotation once."""
        return tuple(dict.fromkeys(_ropes(self.ops)))

    def weights(self) -> dict[str, Weight]:
        """Every tensor that is read, once, by its name, which for one of a stack has its number in it."""
        return {str(weight): weight for weight in self._weights()}

    def shared(self) -> frozenset[str]:
        """Names of tensors, as `weights` has them, that more than one op reads."""
        counts = Counter(map(str, self._weights()))
        return frozenset(name for name, count in counts.items() if count > 1)

    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the files have to have, with its shape there."""
        return {weight.name: weight.stored_shape for weight in self._weights()}

    def weight_shapes(self, dtype: torch.dtype) -> Iterator[tuple[tuple[int, ...], torch.dtype]]:
        """Each tensor that is kept once loaded, matrices in `dtype`."""
        return ((w.shape, w.dtype(dtype)) for w in self.weights().values())

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Bytes that these take."""
        return sum(prod(shape) * kept.itemsize for shape, kept in self.weight_shapes(dtype))

    @property
    def repacks(self) -> bool:
        """See Outline."""
        return True

    def step_cost(self, plan: StepPlan, element_bytes: int) -> Mapping[OpKind, OpCost]:
        """The cost of a step by kind of op that there is, all layers together.

        The head is missing where no row needs logits.
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
        """Bytes a row that computing it in torch op by op has allocated at its widest."""
        lasting = RESIDUAL_ROWS * self.facts.hidden_size + self.lasting
        return lasting * size + max(op.row_bytes(size) for op in self.ops)

    def beside_rows(self, size: int, rows: int, longest: int) -> int:
        """See Outline: attention is the backend's."""
        return 0

    def logits_bytes(self, size: int) -> int:
        """Bytes a row of logits in torch: the product's in the run's dtype, widened, scaled and capped."""
        if isinstance(self.head, PooledHead):
            return self.head.row_bytes()
        return self.facts.vocab_size * (FLOAT32 * (1 + self.head.copies()) + (size if size != FLOAT32 else 0))

    def __str__(self) -> str:
        lines = [f"{', '.join(op.writes)} = {text_of(op, op.reads)}" for op in self.ops]
        if isinstance(self.head, Logits):
            return "\n".join([*lines, f"logits = {text_of(self.head, (self.result,))}"])
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
    """A program is one; a model that Transformers code computes has another (`transformers_code.outline`)."""

    @property
    def facts(self) -> Facts:
        """What scheduler, cache and runner know of it."""

    def weight_shapes(self, dtype: torch.dtype) -> Iterable[tuple[tuple[int, ...], torch.dtype]]:
        """Each tensor that is kept once loaded, matrices in `dtype`."""

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Bytes that these take."""

    @property
    def repacks(self) -> bool:
        """Whether torch packs matrices once more on a CPU, beside those that an image holds."""

    def row_bytes(self, size: int) -> int:
        """Bytes that computing a row in torch has allocated at its widest, for elements of `size` bytes."""

    def beside_rows(self, size: int, rows: int, longest: int) -> int:
        """Bytes beside those of its rows that a step of so many, in sequences of at most `longest` tokens, takes."""

    def logits_bytes(self, size: int) -> int:
        """Bytes that a row of logits takes in torch, with the copies that are made on the way to float32."""


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""Of a layer, in the name of a tensor."""
_OWN_NUMBER = re.compile(r"\b(layer|state|part)=\d+")
"""Of a cache, of a state, or of a token's input: each op's own."""


def summary(program: Program) -> str:
    """A line an op; layers that are alike once, with `{}` for their number."""
    return "\n".join(_lines(program))


def _lines(program: Program) -> Iterator[str]:
    lines = str(program).splitlines()
    alike: dict[tuple[str, ...], list[int]] = {}
    for number, (first, end) in enumerate(pairwise(program.layers)):
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
    """0, 1, 2 and 5 as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
