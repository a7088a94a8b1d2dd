"""Elementwise products, with or without an activation, and sparse activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Literal

import torch
from torch import Tensor

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_kernels.activation.reference import ACTIVATIONS
from plimsoll_kernels.cpu.columns_records import MultiplyRecord
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues, activation_of
from plimsoll_runtime.models.ops.embed import rounded
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weights

Opening = Activation | Literal["sigmoid", "none"]
_OPENINGS: Mapping[Opening, Callable[[Tensor], Tensor]] = {
    **dict(ACTIVATIONS.items()),
    "sigmoid": torch.sigmoid,
    "none": lambda x: x,
}


@dataclass(frozen=True, slots=True)
class Multiply(Op):
    """x * activation(g). Reads x and g, both `width` wide."""

    width: int
    activation: Opening
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STATE
    cpu_fields: ClassVar = ("width", "activation")
    cpu_reads: ClassVar = CpuReads.GATED

    def cost(self, rows: StepRows, size: int) -> OpCost:
        elements = rows.count * self.width
        return OpCost(3 * elements * size, 2 * elements)

    def row_bytes(self, size: int) -> int:
        return 4 * self.width * size

    def compiled(self, weights: Weights) -> Run:
        opening = _OPENINGS[self.activation]

        def run(step: Step, x: Tensor, gate: Tensor) -> Tensor:
            return x * opening(gate)

        return run

    def check_cpu(self) -> None:
        activation_of(self.activation)

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        [source, gate], target = values.over_columns(self, (self.width,) * 2, self.width, in_place=True)
        activation = activation_of(self.activation)
        record = MultiplyRecord(source=source, gate=gate, target=target, width=self.width, activation=activation)
        yield CpuOp(self.kind, lambda weights: record)


FLOPS = 6
"""Operations for each element: its share of mean and deviation, the difference, and the comparison."""


@dataclass(frozen=True, slots=True)
class Sparsify(Op):
    """max(0, x - c), where c exceeds the given `share` of a row's numbers if these are normally distributed."""

    width: int
    share: float
    reads: Values
    writes: Values
    kind: OpKind = OpKind.GATE_UP

    def cost(self, rows: StepRows, size: int) -> OpCost:
        elements = rows.count * self.width
        return OpCost(2 * elements * size, FLOPS * elements)

    def row_bytes(self, size: int) -> int:
        return 3 * self.width * size

    def compiled(self, weights: Weights) -> Run:
        deviations = NormalDist().inv_cdf(self.share)

        def run(step: Step, x: Tensor) -> Tensor:
            cut = x.mean(dim=-1, keepdim=True)
            cut = cut + x.std(dim=-1, keepdim=True, unbiased=False) * rounded(deviations, x.dtype)
            return (x - cut).relu()

        return run
