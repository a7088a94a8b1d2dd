"""What every op has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.layers.states import States
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues
from plimsoll_runtime.models.ops.weight import Weight, Weights, weights_in
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


class Op(ABC):
    """A frozen record, whose class is a dataclass. It is the one home of an op: weights, cost, and what computes it.

    `kind`: what it is timed as. `reads` and `writes`: its values. What it becomes on the CPU is said by `lower`:
    executors that do not know an op, or a field that is not its default, refuse the program.
    """

    __slots__ = ()
    kind: OpKind
    reads: Values
    writes: Values
    cpu_fields: ClassVar[tuple[str, ...] | None] = None
    """The fields that `lower` reads, besides those above; None: the CPU kernels have no such op."""
    cpu_reads: ClassVar[CpuReads] = CpuReads.FLOATS

    def weights(self) -> tuple[Weight, ...]:
        """The tensors that it needs: those of its fields, in their order."""
        return tuple(weights_in(getattr(self, field.name) for field in fields(self)))  # type: ignore[arg-type]

    @abstractmethod
    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Of a step, in elements of `size` bytes."""

    @abstractmethod
    def row_bytes(self, size: int) -> int:
        """Bytes a row that computing it in torch allocates at once, its result included."""

    @abstractmethod
    def compiled(self, weights: Weights) -> Run:
        """What computes it in torch, on any device."""

    def check_cpu(self) -> None:  # noqa: B027 (most have none)
        """Raises UnsupportedOpError for values of `cpu_fields` that the CPU kernels do not have."""

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """What it becomes on the CPU, perhaps with the ops that follow it; `values.at` is moved behind these.

        Raises UnsupportedOpError if the kernels do not have it between its neighbours.
        """
        raise NotImplementedError


@runtime_checkable
class Stateful(Protocol):
    """An op that keeps something of each sequence, in its step's states under the number `state`."""

    @property
    def state(self) -> int:
        """Which of `Facts.states` is its own."""

    @property
    def keeps(self) -> StateShape:
        """What that is."""
