"""Groups of consecutive ops that torch, or one of our GPU kernels, computes in one call."""

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
"""Ops on heads of queries and keys before attention."""


class OpGroup(Protocol):
    """Unit that an executor runs: one op or several."""

    @property
    def kind(self) -> OpKind:
        """The kind that its time is recorded under."""

    @property
    def reads(self) -> Values:
        """Names of the values that it reads."""

    @property
    def writes(self) -> Values:
        """Names of the values that it writes."""

    def compiled(self, weights: Weights) -> Run:
        """Read the weights and return the function that computes the group."""


@dataclass(frozen=True, slots=True)
class NormedSum:
    """A sum and the norm after it, in one pass over memory on a GPU."""

    add: Add
    norm: Normalise
    kind: OpKind = OpKind.NORM

    @property
    def reads(self) -> Values:
        return self.add.reads

    @property
    def writes(self) -> Values:
        return (*self.norm.writes, *self.add.writes)

    def compiled(self, weights: Weights) -> Run:
        normaliser = self.norm.loaded(weights)

        def run(step: Step, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return normaliser.of_sum(x, y)

        return run


@dataclass(frozen=True, slots=True)
class TurnedAttention:
    """Norms and rotation of query and key heads, then attention, as one group.

    The heads of values are not copied in between, and a `RotatingAttention` may compute all in one pass.
    """

    turns: tuple[Turn, ...]
    attend: Attend
    reads: Values
    kind: OpKind = OpKind.ROPE

    @property
    def writes(self) -> Values:
        return self.attend.writes

    def compiled(self, weights: Weights) -> Run:
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
        """Return the rope if one kernel can normalise, rotate and write to the cache, else None.

        That needs norms, if any, to be weighted RMS norms of each head, and a rotation of whole heads, by halves, as
        the last op.
        """
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
"""Longest group: a norm of heads, a rotation, a scale of queries, and attention."""


def group_ops(ops: Sequence[Op]) -> Iterator[OpGroup]:
    """Yield the ops of a program in groups that torch computes in one call."""
    at = 0
    while at < len(ops):
        part, count = _first(ops[at : at + LONGEST])
        yield part
        at += count


def _first(ops: Sequence[Op]) -> tuple[OpGroup, int]:
    """Return the group that starts with the first op, and its number of ops."""
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
