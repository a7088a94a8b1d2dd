"""The contract of ops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.layers.collectives import Collectives
from plimsoll_runtime.models.layers.states import States
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues
from plimsoll_runtime.models.ops.weight import Weight, Weights, weights_in
from plimsoll_runtime.models.spec.attention import RopeSpec
from plimsoll_runtime.models.spec.recurrent import StateShape

Values = tuple[str, ...]
"""Names of values, [rows, width] each. An op may overwrite a value that it reads, also with another width."""


@dataclass(slots=True)
class Step:
    """Inputs of ops besides values: int64 [T] tokens and positions, cosines and sines [T, D / 2] by rope.

    `states` are set if the decoder has recurrent layers, `collectives` if it is the decoder of one rank of several.
    """

    token_ids: Tensor
    positions: Tensor
    turns: Mapping[RopeSpec, tuple[Tensor, Tensor]]
    attention: Attention
    states: States | None = None
    collectives: Collectives | None = None


Run = Callable[..., Tensor | tuple[Tensor, ...]]
"""Maps (step, a tensor for each value that the op reads) to a tensor for each value that it writes."""


def states_of(step: Step) -> States:
    """Return a step's states. Raises ValueError if there are none."""
    if step.states is None:
        raise ValueError("a decoder with recurrent layers is called without the states of its sequences")
    return step.states


class Op(ABC):
    """An op: a frozen dataclass with its weights, its cost, its torch code and its lowering to the CPU.

    `kind` is the kind that its time is recorded under. `reads` and `writes` are names of values. Executors reject a
    program with an op that they do not support, or with a field that differs from its default and that they do not
    support.
    """

    __slots__ = ()
    kind: OpKind
    reads: Values
    writes: Values
    cpu_fields: ClassVar[tuple[str, ...] | None] = None
    """Fields that `lower` supports, besides those above; None if the CPU kernels lack the op."""
    cpu_reads: ClassVar[CpuReads] = CpuReads.FLOATS

    def weights(self) -> tuple[Weight, ...]:
        """Return the tensors of its fields, in order."""
        return tuple(weights_in(getattr(self, field.name) for field in fields(self)))  # type: ignore[arg-type]

    @abstractmethod
    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost of a step with elements of `size` bytes."""

    @abstractmethod
    def row_bytes(self, size: int) -> int:
        """Return the peak bytes per row that the torch code allocates, including the result, for elements of `size`
        bytes.
        """

    @abstractmethod
    def compiled(self, weights: Weights) -> Run:
        """Read the weights and return the torch function, for any device."""

    def check_cpu(self) -> None:  # noqa: B027 (most have none)
        """Raise UnsupportedOpError for values of `cpu_fields` that the CPU kernels do not support."""

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Yield the CPU ops of this op, perhaps with the ops after it, and advance `values.at` past them.

        Raises UnsupportedOpError if the kernels do not support it between its neighbours.
        """
        raise NotImplementedError


@runtime_checkable
class Stateful(Protocol):
    """An op that keeps a recurrent state for each sequence."""

    @property
    def state(self) -> int:
        """Index in `Facts.states`."""

    @property
    def keeps(self) -> StateShape:
        """Shape of the state of one sequence."""
