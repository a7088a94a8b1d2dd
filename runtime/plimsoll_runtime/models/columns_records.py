"""The records of ops over columns, with their weights as the CPU kernels read them. See fused.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat

import torch
from torch import Tensor

from plimsoll_kernels.cpu.columns_records import ConvolveRecord, MultiplyRecord, PartRecord, ScaleRecord
from plimsoll_kernels.cpu.op_records import Activation
from plimsoll_runtime.models.fused_columns import FusedColumns
from plimsoll_runtime.models.ops.convolve import Convolve
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.weights import WeightReader

ColumnsRecord = ScaleRecord | MultiplyRecord | ConvolveRecord


class ColumnsParts:
    """`kept`: puts a tensor where it stays, and gives its address."""

    def __init__(self, reader: WeightReader, kept: Callable[[Tensor], int]) -> None:
        self._reader = reader
        self._kept = kept

    def record(self, fused: FusedColumns) -> ColumnsRecord:
        """An op's own record."""
        parts = [PartRecord(*part) for part in fused.sources]
        match fused.op:
            case Scale() as op:
                return ScaleRecord(self._factors(op), *parts, fused.target, sum(op.widths))
            case Multiply() as op:
                return MultiplyRecord(*parts, fused.target, op.width, activation_of(op.activation))
            case Convolve() as op:
                width, taps = op.weight.shape
                weight, bias = self._floats(op.weight, turned=True), self._optional(op.bias)
                activation = activation_of(op.activation)
                return ConvolveRecord(weight, bias, *parts, op.state, fused.target, width, taps, activation)

    def _factors(self, op: Scale) -> int | None:
        if op.factors == (1.0,):
            return None
        factors = op.factors if len(op.factors) > 1 else op.factors * len(op.widths)
        return self._kept(torch.tensor([*chain.from_iterable(map(repeat, factors, op.widths))]))

    def _floats(self, weight: Weight, *, turned: bool = False) -> int:
        found = self._reader.read(weight).float()
        return self._kept(found.t().contiguous() if turned else found)

    def _optional(self, weight: Weight | None) -> int | None:
        return None if weight is None else self._floats(weight)


def activation_of(name: str | None) -> Activation:
    """By its name in a program."""
    return Activation.NONE if name is None else Activation[name.upper()]
