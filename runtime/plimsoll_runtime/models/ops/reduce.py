"""Sums of partial results over the ranks of a parallel group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from plimsoll_kernels.cpu.op_records import ReduceRecord
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuValues, UnsupportedOpError
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weights


@dataclass(frozen=True, slots=True)
class Reduce(Op):
    """The sum of a value over `ranks` ranks. Each of them has computed a part of the products behind it.

    `in_kernels`: the ranks are joined by an exchange that CPU kernels can call.
    """

    width: int
    ranks: int
    reads: Values
    writes: Values
    in_kernels: bool = False
    kind: OpKind = OpKind.REDUCE
    cpu_fields: ClassVar = ("width", "ranks", "in_kernels")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost of a rank: it reads the parts of all ranks and writes the sum, in float32."""
        elements = rows.count * self.width
        return OpCost((self.ranks + 1) * elements * FLOAT32, (self.ranks - 1) * elements)

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the result, and of the partial and the summed row in float32."""
        return self.width * (size + 2 * FLOAT32)

    def compiled(self, weights: Weights) -> Run:
        def run(step: Step, x: Tensor) -> Tensor:
            if step.collectives is None:
                raise ValueError("a rank's program is run without the collectives of its group")
            return step.collectives.sum(x)

        return run

    def check_cpu(self) -> None:
        if not self.in_kernels:
            raise UnsupportedOpError("sums over ranks only with --group-backend local")

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Lower the op, together with a following sum, or norm and sum."""
        source = values.floats(self.reads[0], self.width)
        match values.following(2):
            case [Add() as add, *_] if add.is_in_place(values, self.writes, 2):
                target = values.floats(add.reads[0], self.width)
                values.at += 2
                values.changed(add.writes[0], add.width, target)
                yield self._cpu_op(source, target, adds=True, scale=add.scale)
                return
            case [Normalise() as norm, Add() as add] if norm.reads == norm.writes == self.writes and add.is_in_place(
                values, self.writes, 3
            ):
                values.at += 1
                values.changed(self.writes[0], self.width, source)
                yield self._cpu_op(source, source)
                yield norm.added(values, add)
                return
        values.at += 1
        values.changed(self.writes[0], self.width, source)
        yield self._cpu_op(source, source)

    def _cpu_op(self, source: int, target: int, *, adds: bool = False, scale: float = 1.0) -> CpuOp:
        def record(weights: CpuWeights) -> ReduceRecord:
            return ReduceRecord(
                exchange=weights.exchange, source=source, target=target, width=self.width, adds=adds, scale=scale
            )

        return CpuOp(self.kind, record)
