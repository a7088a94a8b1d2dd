"""Values that pass from one stage of a pipeline to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from plimsoll_kernels.cpu.op_records import ReceiveRecord, SendRecord
from plimsoll_runtime.models.layers.collectives import Collectives
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuValues, UnsupportedOpError
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weights


def _collectives(step: Step) -> Collectives:
    if step.collectives is None:
        raise ValueError("the program of a stage is run without the other stages of its pipeline")
    return step.collectives


class Passing(Op):
    """An op that passes values, each with its columns in `widths`, from one stage to the next."""

    __slots__ = ()
    widths: tuple[int, ...]

    @property
    def columns(self) -> int:
        """Columns of all values together."""
        return sum(self.widths)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        return OpCost(2 * rows.count * self.columns * size)

    def row_bytes(self, size: int) -> int:
        return self.columns * size


@dataclass(frozen=True, slots=True)
class Receive(Passing):
    """Values that the stage before has sent, each with its columns in `widths`. The first op of a later stage."""

    widths: tuple[int, ...]
    writes: Values
    reads: Values = ()
    kind: OpKind = OpKind.STAGE
    cpu_fields: ClassVar = ("widths",)

    def compiled(self, weights: Weights) -> Run:
        dtype, widths, columns = weights.dtype, list(self.widths), self.columns

        def run(step: Step) -> Tensor | tuple[Tensor, ...]:
            values = _collectives(step).receive(step.token_ids.numel(), columns, dtype, step.token_ids.device)
            if len(widths) == 1:
                return values
            return tuple(each.contiguous() for each in torch.split(values, widths, dim=1))

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Lower the op, which must be the first."""
        if values.at:
            raise UnsupportedOpError("supports Receive only as the first op")
        values.at += 1
        starts = accumulate(self.widths, initial=0)
        for name, width, first in zip(self.writes, self.widths, starts, strict=False):
            target = values.written(name, width, operands=False)
            record = ReceiveRecord(target=target, width=width, first=first, stride=self.columns)
            yield CpuOp(self.kind, lambda weights, record=record: record)  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Send(Passing):
    """Sends values to the stage after, each with its columns in `widths`. The last op of a stage before the last.

    Its result is the first value.
    """

    widths: tuple[int, ...]
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STAGE
    cpu_fields: ClassVar = ("widths",)

    def compiled(self, weights: Weights) -> Run:
        def run(step: Step, *values: Tensor) -> Tensor:
            _collectives(step).send(values[0] if len(values) == 1 else torch.cat(values, dim=1))
            return values[0]

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Lower the op, which must be the last."""
        starts = accumulate(self.widths, initial=0)
        for name, width, first in zip(self.reads, self.widths, starts, strict=False):
            record = SendRecord(source=values.floats(name, width), width=width, first=first, stride=self.columns)
            yield CpuOp(self.kind, lambda weights, record=record: record)  # type: ignore[misc]
        values.at += 1
