"""The decoder: token ids to hidden states to logits, by its program; here with torch, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from plimsoll_runtime.models.fusions import OpGroup, TurnedAttention, group_ops
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.layers.rope import RopeTable
from plimsoll_runtime.models.layers.states import States
from plimsoll_runtime.models.ops.attention import Attend, AttendShared
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.mla import AttendLatent
from plimsoll_runtime.models.ops.op import Run, Step
from plimsoll_runtime.models.program import Outline, Program
from plimsoll_runtime.models.spec.attention import RopeSpec
from plimsoll_runtime.models.weight_reader import WeightReader


class Decoder(Protocol):
    """A loaded model. It keeps nothing between calls: caches are the attention's, recurrent states are `states`."""

    dtype: torch.dtype
    weight_bytes: int

    @property
    def outline(self) -> Outline:
        """What was known of it before it had weights."""

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, states: States | None = None
    ) -> Tensor:
        """token_ids and positions int64 [T] -> final hidden states [T, hidden], normed.

        `states`: where the outline's facts list some.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden] -> float32 [R, vocab], valid until the next call."""


@dataclass(slots=True)
class Stage:
    """A part of a program, ready to run: where its values lie, and which of them nobody reads any more after it.

    `attends`: it calls the step's attention.
    """

    kind: OpKind
    run: Run
    reads: Sequence[int]
    writes: Sequence[int]
    done: Sequence[int]
    attends: bool


def walk(stages: Sequence[Stage], step: Step, values: list[Tensor | None]) -> None:
    """Run stages in order over values, by their places: each is there while it is read later on."""
    for stage in stages:
        result = stage.run(step, *[values[i] for i in stage.reads])
        if isinstance(result, tuple):
            for i, value in zip(stage.writes, result, strict=True):
                values[i] = value
        else:
            values[stage.writes[0]] = result
        for i in stage.done:
            values[i] = None


ATTENDS = (Attend, AttendShared, AttendLatent, TurnedAttention)
"""The parts that call a step's attention."""


class TorchDecoder:
    """A decoder of torch's ops, one after the other, over `count` values, the last of which is the result."""

    def __init__(self, program: Program, reader: WeightReader) -> None:
        self.program = program
        self.dtype = reader.dtype
        parts = list(group_ops(program.ops))
        self.count, self.stages = _staged(parts, program.result, reader)
        self._logits = program.head.compiled(reader)
        self._ropes = {rope: RopeTable(rope, reader.device) for rope in program.ropes}
        self.weight_bytes = reader.nbytes

    @property
    def outline(self) -> Program:
        """See Decoder."""
        return self.program

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, states: States | None = None
    ) -> Tensor:
        """See Decoder."""
        values: list[Tensor | None] = [None] * self.count
        walk(self.stages, Step(token_ids, positions, self.turns(positions), attention, states), values)
        hidden = values[-1]
        assert hidden is not None
        return hidden

    def turns(self, positions: Tensor) -> dict[RopeSpec, tuple[Tensor, Tensor]]:
        """positions int64 [T] -> cosines and sines by rope [T, D / 2]."""
        return {rope: table(positions, self.dtype) for rope, table in self._ropes.items()}

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden] -> float32 [R, vocab]."""
        return self._logits(hidden)


def _staged(parts: Sequence[OpGroup], result: str, reader: WeightReader) -> tuple[int, list[Stage]]:
    """How many values there are, the result last; and the stages, whose weights are read here, in order."""
    names = dict.fromkeys(name for part in parts for name in (*part.reads, *part.writes) if name != result)
    places = {name: i for i, name in enumerate([*names, result])}
    stages = []
    for number, (part, done) in enumerate(zip(parts, _done_after(parts, result), strict=True), 1):
        reads, writes, dead = ([places[name] for name in row] for row in (part.reads, part.writes, done))
        stages.append(Stage(part.kind, part.compiled(reader), reads, writes, dead, isinstance(part, ATTENDS)))
        reader.done(number / len(parts))
    return len(places), stages


def _done_after(parts: Sequence[OpGroup], result: str) -> list[list[str]]:
    """For each part the values that it reads, or writes, and none after it does before they are written anew."""
    wanted = {result}
    done: list[list[str]] = []
    for part in reversed(parts):
        done.append([name for name in dict.fromkeys((*part.reads, *part.writes)) if name not in wanted])
        wanted = (wanted - set(part.writes)) | set(part.reads)
    return done[::-1]
