"""Rows of ops that torch, or a kernel of ours on a GPU, computes in one go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from torch import Tensor

from plimsoll_runtime.models.layers.attention import RotatingAttention
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attention import Attend, attended
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.heads import NormHeads, OfQueryKey, QueryKeyNorm, Rotate, ScaleQueries, split_heads
from plimsoll_runtime.models.ops.norm import Normalise, read
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weights
from plimsoll_runtime.models.spec.attention import RopeSpec

Turn = NormHeads | Rotate | ScaleQueries
"""What is done to heads of queries and keys before attention."""


class OpGroup(Protocol):
    """What an executor runs: an op, or several in one."""

    @property
    def kind(self) -> OpKind:
        """What it is timed as."""

    @property
    def reads(self) -> Values:
        """The values that it reads."""

    @property
    def writes(self) -> Values:
        """The values that it writes."""

    def compiled(self, weights: Weights) -> Run:
        """What computes it."""


@dataclass(frozen=True, slots=True)
class NormedSum:
    """A sum and the norm after it: one pass over memory on a GPU."""

    add: Add
    norm: Normalise
    kind: OpKind = OpKind.NORM

    @property
    def reads(self) -> Values:
        """See OpGroup."""
        return self.add.reads

    @property
    def writes(self) -> Values:
        """See OpGroup."""
        return (*self.norm.writes, *self.add.writes)

    def compiled(self, weights: Weights) -> Run:
        """See OpGroup."""
        normaliser = self.norm.loaded(weights)

        def run(step: Step, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return normaliser.of_sum(x, y)

        return run


@dataclass(frozen=True, slots=True)
class TurnedAttention:
    """Norms over heads and their rotation, then attention: values are not copied, and a backend may do all in one."""

    turns: tuple[Turn, ...]
    attend: Attend
    reads: Values
    kind: OpKind = OpKind.ROPE

    @property
    def writes(self) -> Values:
        """See OpGroup."""
        return self.attend.writes

    def compiled(self, weights: Weights) -> Run:
        """See OpGroup."""
        layer, shape = self.attend.layer, self.attend.shape
        turns = [turn.of_query_key(weights) for turn in self.turns]
        sinks = read(self.attend.sinks, weights)

        def run(step: Step, heads: Tensor) -> Tensor:
            query_key, value = split_heads(shape, heads)
            for turn in turns:
                query_key = turn(step, query_key)
            return attended(step, layer, shape, query_key, value, sinks)

        return run if (rope := self._rope_of_one_pass()) is None else self._one_pass(rope, turns, sinks, run)

    def _rope_of_one_pass(self) -> RopeSpec | None:
        """Where a kernel may norm, turn and write to the cache at once: one half of a head turns with the other."""
        if not self.turns or not isinstance(last := self.turns[-1], Rotate):
            return None
        rope, norms = last.rope, self.turns[:-1]
        plain = all(
            isinstance(n, NormHeads) and n.norm.norm.kind == "rms" and n.norm.norm.weighted and not n.norm.together
            for n in norms
        )
        return rope if plain and not rope.pairs and rope.head_dim == self.attend.shape.head_dim else None

    def _one_pass(self, rope: RopeSpec, turns: Sequence[OfQueryKey], sinks: Tensor | None, otherwise: Run) -> Run:
        layer, head_dim = self.attend.layer, self.attend.shape.head_dim
        norm = turns[0] if isinstance(turns[0], QueryKeyNorm) else None

        def run(step: Step, heads: Tensor) -> Tensor | tuple[Tensor, ...]:
            if not isinstance(step.attention, RotatingAttention):
                return otherwise(step, heads)
            each = heads.view(heads.shape[0], -1, head_dim)
            return step.attention.of_heads(layer, each, *step.turns[rope], norm, sinks).flatten(1)

        return run


LONGEST = 4
"""Ops of the longest row: a norm over heads, a rotation, a scale of queries, and attention."""


def group_ops(ops: Sequence[Op]) -> Iterator[OpGroup]:
    """The ops of a program, in rows where torch has something for them."""
    at = 0
    while at < len(ops):
        part, count = _first(ops[at : at + LONGEST])
        yield part
        at += count


def _first(ops: Sequence[Op]) -> tuple[OpGroup, int]:
    """What the first of them becomes, together with how many after it."""
    first = ops[0]
    match ops:
        case [Add(scale=1.0) as add, Normalise() as norm, *_] if norm.reads == add.writes != norm.writes:
            return NormedSum(add, norm), 2
    if _turns(first):
        turns = tuple(op for op in takewhile(_turns, ops) if isinstance(op, Turn))
        match ops[len(turns) :]:
            case [Attend() as attend, *_]:
                return TurnedAttention(turns, attend, first.reads), len(turns) + 1
    return first, 1


def _turns(op: Op) -> bool:
    return isinstance(op, Turn)
