"""Ops that multiply columns by numbers of the config or of the files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import ClassVar

import torch
from torch import Tensor

from plimsoll_kernels.cpu.columns_records import ScaleRecord
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weight, Weights


@dataclass(frozen=True, slots=True)
class Scale(Op):
    """Multiplies each group of `widths` columns by its factor; a single factor applies to all columns."""

    widths: tuple[int, ...]
    factors: tuple[float, ...]
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STATE
    cpu_fields: ClassVar = ("widths", "factors")
    cpu_reads: ClassVar = CpuReads.COLUMNS

    def cost(self, rows: StepRows, size: int) -> OpCost:
        elements = rows.count * sum(self.widths)
        return OpCost(2 * elements * size, elements)

    def row_bytes(self, size: int) -> int:
        return 2 * sum(self.widths) * size

    def compiled(self, weights: Weights) -> Run:
        if len(self.factors) == 1:
            factor = self.factors[0]
            return lambda step, x: x * factor
        factors = self._each().to(weights.device)

        def run(step: Step, x: Tensor) -> Tensor:
            return (x * factors).to(x.dtype)

        return run

    def _each(self) -> Tensor:
        """Return the factor of each column, float32."""
        factors = self.factors if len(self.factors) > 1 else self.factors * len(self.widths)
        return torch.tensor([*chain.from_iterable(map(repeat, factors, self.widths))])

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        width = sum(self.widths)
        [source], target = values.over_columns(self, (width,), width, in_place=True)

        def record(weights: CpuWeights) -> ScaleRecord:
            factors = None if self.factors == (1.0,) else weights.keep(self._each())
            return ScaleRecord(factors=factors, source=source, target=target, width=width)

        yield CpuOp(self.kind, record)


@dataclass(frozen=True, slots=True)
class ScaleAll(Op):
    """Multiplies all columns by one number of the files. `weight` [1]."""

    width: int
    weight: Weight
    reads: Values
    writes: Values
    kind: OpKind

    def cost(self, rows: StepRows, size: int) -> OpCost:
        elements = rows.count * self.width
        return OpCost(2 * elements * size, elements)

    def row_bytes(self, size: int) -> int:
        return 2 * self.width * size

    def compiled(self, weights: Weights) -> Run:
        factor = weights.read(self.weight)

        def run(step: Step, x: Tensor) -> Tensor:
            return x * factor.to(x.dtype)

        return run
