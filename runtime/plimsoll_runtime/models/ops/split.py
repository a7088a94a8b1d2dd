"""Ops that take columns of a value: all of them split, or some alone."""

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
    """As many values as `widths`, which lie side by side in the one that is read. Nothing is copied."""

    widths: tuple[int, ...]
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STATE
    cpu_fields: ClassVar = ("widths",)
    cpu_reads: ClassVar = CpuReads.COLUMNS

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        return OpCost()

    def row_bytes(self, size: int) -> int:
        """See Op: what is read stays until the last of its parts was."""
        return sum(self.widths) * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        widths = list(self.widths)

        def run(step: Step, x: Tensor) -> tuple[Tensor, ...]:
            return torch.split(x, widths, dim=-1)

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """See Op: parts stay where they are for those that read columns; others get copies."""
        [whole] = self.reads
        values.at += 1
        if whole not in self.writes and values.lives(whole):
            raise UnsupportedOpError(f"splits {whole}, which is read as a whole behind that")
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
    """The `part`-th `width` columns. Nothing is copied."""

    part: int
    width: int
    reads: Values
    writes: Values
    kind: OpKind

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        return OpCost()

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 0

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        first, end = self.part * self.width, (self.part + 1) * self.width

        def run(step: Step, x: Tensor) -> Tensor:
            return x[:, first:end]

        return run
