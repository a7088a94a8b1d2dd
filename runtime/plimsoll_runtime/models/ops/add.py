"""Sums of values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from plimsoll_kernels.cpu.op_records import AddRecord
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuValues
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weights


@dataclass(frozen=True, slots=True)
class Add(Op):
    """x + scale * y. Its cost is zero: the op before or after it passes over the memory anyway."""

    width: int
    kind: OpKind
    reads: Values
    writes: Values
    scale: float = 1.0
    cpu_fields: ClassVar = ("width", "scale")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        return OpCost()

    def row_bytes(self, size: int) -> int:
        return 2 * self.width * size

    def compiled(self, weights: Weights) -> Run:
        scale = self.scale

        def run(step: Step, x: Tensor, y: Tensor) -> Tensor:
            return x + (y if scale == 1.0 else y * scale)

        return run

    def is_in_place(self, values: CpuValues, added: Values, ops: int) -> bool:
        """Return whether a kernel can add its result to x's buffer, so that this sum needs no kernel of its own.

        `added` are the values that the kernel computes: y must be the only one. `ops` is the number of ops lowered
        together, this sum being the last: no op after it may read x or y.
        """
        x, y = self.reads
        dead = all(name in self.writes or not values.lives(name, ops) for name in (x, y))
        return (y,) == added and y != x and dead and values.are_floats(x)

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        source, added = (values.floats(name, self.width) for name in self.reads)
        values.at += 1
        target = values.written(self.writes[0], self.width, operands=False)
        record = AddRecord(source=source, added=added, target=target, width=self.width, scale=self.scale)
        yield CpuOp(self.kind, lambda weights: record)
