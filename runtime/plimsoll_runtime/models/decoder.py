"""The decoder contract, and the torch executor: runs a program op by op on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from plimsoll_runtime.models.fusions import OpGroup, TurnedAttention, group_ops
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.layers.collectives import Collectives
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
    """A loaded model. It is stateless: caches belong to the attention, and recurrent states are passed in."""

    dtype: torch.dtype
    weight_bytes: int

    @property
    def outline(self) -> Outline:
        """Facts and weight shapes, known before the weights are loaded."""

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, states: States | None = None
    ) -> Tensor:
        """Compute final hidden states [T, hidden], normalised, from token_ids and positions, both int64 [T].

        `states` are required if the outline's facts list some.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [R, vocab] of hidden [R, hidden], valid until the next call.

        A pooling model returns its vectors or scores [R, outputs] of pooled states instead.
        """


@dataclass(slots=True)
class Stage:
    """A compiled op group: indices of the values that it reads and writes, and of those that are not used afterwards.

    `attends`: it calls the step's attention.
    """

    kind: OpKind
    run: Run
    reads: Sequence[int]
    writes: Sequence[int]
    done: Sequence[int]
    attends: bool


def walk(stages: Sequence[Stage], step: Step, values: list[Tensor | None]) -> None:
    """Run stages in order. `values` are by index; each is released after its last use."""
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
"""Op groups that call the step's attention."""


class TorchDecoder:
    """A decoder that runs stages of torch ops in order over `count` values, of which the last is the result."""

    def __init__(self, program: Program, reader: WeightReader, collectives: Collectives | None = None) -> None:
        """`collectives`: those of the program's group, if it is the program of one rank of several."""
        self.collectives = collectives
        self.outline = self.program = program
        self.dtype = reader.dtype
        parts = list(group_ops(program.ops))
        self.count, self.stages = _staged(parts, program.result, reader)
        self._logits = program.head.compiled(reader)
        self._ropes = {rope: RopeTable(rope, reader.device) for rope in program.ropes}
        self.weight_bytes = reader.nbytes

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, states: States | None = None
    ) -> Tensor:
        values: list[Tensor | None] = [None] * self.count
        step = Step(token_ids, positions, self.turns(positions), attention, states, self.collectives)
        walk(self.stages, step, values)
        hidden = values[-1]
        assert hidden is not None
        return hidden

    def turns(self, positions: Tensor) -> dict[RopeSpec, tuple[Tensor, Tensor]]:
        """Return cosines and sines [T, D / 2] by rope for positions int64 [T]."""
        return {rope: table(positions, self.dtype) for rope, table in self._ropes.items()}

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [R, vocab] of hidden [R, hidden]; of a pooling model, its vectors or scores."""
        return self._logits(hidden)


def _staged(parts: Sequence[OpGroup], result: str, reader: WeightReader) -> tuple[int, list[Stage]]:
    """Return the number of values (the result is the last) and the stages. Reads the weights in order."""
    names = dict.fromkeys(name for part in parts for name in (*part.reads, *part.writes) if name != result)
    places = {name: i for i, name in enumerate([*names, result])}
    stages = []
    for number, (part, done) in enumerate(zip(parts, _done_after(parts, result), strict=True), 1):
        reads, writes, dead = ([places[name] for name in row] for row in (part.reads, part.writes, done))
        stages.append(Stage(part.kind, part.compiled(reader), reads, writes, dead, isinstance(part, ATTENDS)))
        reader.done(number / len(parts))
    return len(places), stages


def _done_after(parts: Sequence[OpGroup], result: str) -> list[list[str]]:
    """Return, for each op group, the values that it reads or writes and that no later group reads before they are
    overwritten.
    """
    wanted = {result}
    done: list[list[str]] = []
    for part in reversed(parts):
        done.append([name for name in dict.fromkeys((*part.reads, *part.writes)) if name not in wanted])
        wanted = (wanted - set(part.writes)) | set(part.reads)
    return done[::-1]
