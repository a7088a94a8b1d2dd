"""What every op has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.layers.states import States
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.attention import RopeSpec
from plimsoll_runtime.models.spec.recurrent import StateShape

Values = tuple[str, ...]
"""Names of values: [rows, width] each. An op may write to one that it reads, or that had another width before."""


@dataclass(slots=True)
class Step:
    """What an op sees beside values: int64 [T] tokens and positions, cosines and sines by rope [T, D / 2].

    `states` are there where the decoder has recurrent layers.
    """

    token_ids: Tensor
    positions: Tensor
    turns: Mapping[RopeSpec, tuple[Tensor, Tensor]]
    attention: Attention
    states: States | None = None


Run = Callable[..., Tensor | tuple[Tensor, ...]]
"""(step, one tensor for each value that the op reads) -> one for each that it writes."""


def states_of(step: Step) -> States:
    """Of a step of a decoder with recurrent layers."""
    if step.states is None:
        raise ValueError("a decoder with recurrent layers is called without the states of its sequences")
    return step.states


class Weights(Protocol):
    """Where an op's tensors come from, when it is made ready to run."""

    @property
    def device(self) -> torch.device:
        """The run's."""

    def read(self, weight: Weight, *, keep: bool = False) -> Tensor:
        """On the run's device: a vector in float32, a matrix in the run's dtype.

        `keep`: the op computes with the matrix as it is, so that it must not be the mapped file; vectors never are.
        """

    def joined(self, weights: Sequence[Weight]) -> Tensor:
        """Several, one below the other."""


class Op(Protocol):
    """A frozen record."""

    @property
    def kind(self) -> OpKind:
        """What it is timed as."""

    @property
    def reads(self) -> Values:
        """The values that it reads."""

    @property
    def writes(self) -> Values:
        """The values that it writes."""

    def weights(self) -> tuple[Weight, ...]:
        """The tensors that it needs."""

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Of a step, in elements of `size` bytes."""

    def row_bytes(self, size: int) -> int:
        """Bytes a row that computing it in torch allocates at once, its result included."""

    def compiled(self, weights: Weights) -> Run:
        """What computes it in torch, on any device."""


@runtime_checkable
class Stateful(Protocol):
    """An op that keeps something of each sequence, in its step's states under the number `state`."""

    @property
    def state(self) -> int:
        """Which of `Facts.states` is its own."""

    @property
    def keeps(self) -> StateShape:
        """What that is."""
