"""The records of ops over columns, with their weights as the CPU kernels read them. See fused_parts.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat

import torch
from torch import Tensor
from torch.nn.functional import softplus

from plimsoll_kernels.cpu.columns_records import (
    ColumnsRecord,
    ConvolveRecord,
    DeltaRuleRecord,
    DualScanRecord,
    GatedNormRecord,
    GatedRecurrenceRecord,
    MultiplyRecord,
    PartRecord,
    ScaleRecord,
    SelectiveScanRecord,
)
from plimsoll_kernels.cpu.op_records import Activation
from plimsoll_runtime.models.fused_columns import FusedColumns
from plimsoll_runtime.models.ops.convolve import Convolve
from plimsoll_runtime.models.ops.delta_rule import DeltaRule
from plimsoll_runtime.models.ops.dual_scan import DualScan
from plimsoll_runtime.models.ops.gated_norm import GatedNorm
from plimsoll_runtime.models.ops.gated_recurrence import SHARPNESS, GatedRecurrence
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.selective_scan import SelectiveScan
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.weights import WeightReader


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
                return self._convolve(op, parts, fused.target)
            case GatedNorm() as op:
                weight = self._kept(self._reader.read(op.weight).float().repeat(op.width // op.weight.shape[0]))
                return GatedNormRecord(weight, *parts, fused.target, op.width, op.groups, op.after, op.eps)
            case DualScan() as op:
                return self._dual_scan(op, parts, fused.target)
            case DeltaRule() as op:
                return self._delta_rule(op, parts, fused.target)
            case SelectiveScan() as op:
                own = self._decay(op.decay), self._floats(op.skip), self._floats(op.step_bias)
                return SelectiveScanRecord(*own, *parts, op.state, fused.target, *op.decay.shape)
            case GatedRecurrence() as op:
                return self._gated_recurrence(op, parts, fused)

    def _convolve(self, op: Convolve, parts: Sequence[PartRecord], target: int) -> ConvolveRecord:
        width, taps = op.weight.shape
        weight = self._kept(self._reader.read(op.weight).float().t().contiguous())
        bias = None if op.bias is None else self._floats(op.bias)
        return ConvolveRecord(weight, bias, *parts, op.state, target, width, taps, activation_of(op.activation))

    def _dual_scan(self, op: DualScan, parts: Sequence[PartRecord], target: int) -> DualScanRecord:
        shape = op.shape
        return DualScanRecord(
            *(self._decay(op.decay), self._floats(op.skip), self._floats(op.step_bias)),
            *(*parts, op.state, target, shape.heads, shape.head_dim, shape.groups, shape.state, *op.limits),
        )

    def _delta_rule(self, op: DeltaRule, parts: Sequence[PartRecord], target: int) -> DeltaRuleRecord:
        shape = op.shape
        return DeltaRuleRecord(
            *(self._decay(op.decay), self._floats(op.step_bias), *parts, op.state, target),
            *(shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim, shape.in_turns),
        )

    def _gated_recurrence(
        self, op: GatedRecurrence, parts: Sequence[PartRecord], fused: FusedColumns
    ) -> GatedRecurrenceRecord:
        decay = self._kept(-SHARPNESS * softplus(self._reader.read(op.decay).float()))
        weights = (op.recurrent, op.inputs, op.recurrent_bias, op.inputs_bias)
        return GatedRecurrenceRecord(
            *(decay, *map(self._floats, weights), *parts),
            *(op.state, fused.scratch, fused.target, op.decay.shape[0], op.inputs.shape[0]),
        )

    def _factors(self, op: Scale) -> int | None:
        if op.factors == (1.0,):
            return None
        factors = op.factors if len(op.factors) > 1 else op.factors * len(op.widths)
        return self._kept(torch.tensor([*chain.from_iterable(map(repeat, factors, op.widths))]))

    def _decay(self, weight: Weight) -> int:
        """-e^w, a state's [width, count] turned so that neighbours are computed together."""
        found = -self._reader.read(weight).float().exp()
        return self._kept(found.t().contiguous() if found.dim() > 1 else found)

    def _floats(self, weight: Weight) -> int:
        return self._kept(self._reader.read(weight).float())


def activation_of(name: str | None) -> Activation:
    """By its name in a program."""
    return Activation.NONE if name is None else Activation[name.upper()]
