"""Ops that take columns of a value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from plimsoll_kernels.cpu.columns_records import ScaleRecord
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues, UnsupportedOpError
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weights


@dataclass(frozen=True, slots=True)
class Split(Op):
    """Splits a value into adjacent groups of `widths` columns, without copying."""

    widths: tuple[int, ...]
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STATE
    cpu_fields: ClassVar = ("widths",)
    cpu_reads: ClassVar = CpuReads.COLUMNS

    def cost(self, rows: StepRows, size: int) -> OpCost:
        return OpCost()

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the input, which stays until its last part was read."""
        return sum(self.widths) * size

    def compiled(self, weights: Weights) -> Run:
        widths = list(self.widths)

        def run(step: Step, x: Tensor) -> tuple[Tensor, ...]:
            return torch.split(x, widths, dim=-1)

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Lower the op. Parts stay in place for ops that read columns, and are copied for others."""
        [whole] = self.reads
        values.at += 1
        if whole not in self.writes and values.lives(whole):
            raise UnsupportedOpError(f"does not support reading {whole} after a split of it")
        parts = [*zip(self.writes, self.widths, strict=True)]
        values.split(whole, parts)
        for name, width in parts:
            if values.lives(name) and not values.is_read_by(name, CpuReads.COLUMNS, CpuReads.GATED):
                yield self._copied(values, name, width)

    def _copied(self, values: CpuValues, name: str, width: int) -> CpuOp:
        source = values.part(name, width)
        target = values.written(name, width, operands=values.is_multiplied(name), apart=[source.place])
        record = ScaleRecord(factors=None, source=source, target=target, width=width)
        return CpuOp(self.kind, lambda weights: record)


@dataclass(frozen=True, slots=True)
class Columns(Op):
    """The `part`-th group of `width` columns, without copying."""

    part: int
    width: int
    reads: Values
    writes: Values
    kind: OpKind

    def cost(self, rows: StepRows, size: int) -> OpCost:
        return OpCost()

    def row_bytes(self, size: int) -> int:
        return 0

    def compiled(self, weights: Weights) -> Run:
        first, end = self.part * self.width, (self.part + 1) * self.width

        def run(step: Step, x: Tensor) -> Tensor:
            return x[:, first:end]

        return run
