"""The C records of attention, latent attention and ops over columns, with their weights. See `records`."""

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
from plimsoll_kernels.cpu.latent_records import AbsorbRecord, ExpandRecord, LatentRecord
from plimsoll_kernels.cpu.op_records import WIDEST, Activation, AttendRecord, Normed, ShapeRecord
from plimsoll_kernels.cpu.places import Places
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_kernels.cpu.threads import thread_count
from plimsoll_runtime.models.cpu_executor.ops import (
    FusedAbsorb,
    FusedAttendLatent,
    FusedColumns,
    FusedExpand,
    FusedLatent,
    FusedLatentOp,
    head_stride,
)
from plimsoll_runtime.models.ops.causal_conv import Convolve
from plimsoll_runtime.models.ops.delta_rule import DeltaRule
from plimsoll_runtime.models.ops.gated_recurrence import SHARPNESS, GatedRecurrence
from plimsoll_runtime.models.ops.mamba2_scan import DualScan
from plimsoll_runtime.models.ops.mamba_scan import SelectiveScan
from plimsoll_runtime.models.ops.mla import by_head
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.norm import GatedNorm
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.attention import AttentionShape, LatentAttention, RopeSpec
from plimsoll_runtime.models.weight_reader import WeightReader


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


def shape_record(shape: AttentionShape, slopes: Tensor | None = None, sinks: int | None = None) -> ShapeRecord:
    """The attention of a layer as the kernels read it, with `slopes_of` it and the address of float32 sinks [heads]."""
    return ShapeRecord(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        window=shape.window or 0,
        chunk=shape.chunk or 0,
        coarse=shape.alibi is not None and shape.alibi.coarse,
        whole=shape.whole,
        scale=shape.scale,
        softcap=shape.softcap or 0.0,
        slopes=None if slopes is None else slopes.data_ptr(),
        sinks=sinks,
        latent=shape.head_dim if shape.latent else 0,
        apart=shape.head_dim,
    )


def latent_shape_record(own: LatentAttention) -> ShapeRecord:
    """The same over vectors of tokens: results have the numbers that were normed, filled up to whole registers."""
    shape = own.shape
    return ShapeRecord(
        heads=shape.heads,
        kv_heads=1,
        head_dim=shape.head_dim,
        scale=shape.scale,
        latent=-(-own.rank // WIDEST) * WIDEST,
        apart=head_stride(own.rank),
    )


LatentOpRecord = LatentRecord | AbsorbRecord | AttendRecord | ExpandRecord


class LatentParts:
    """Makes records. `kept` owns the memory that they point to; `scale` gives the address of a norm's weight."""

    def __init__(
        self,
        found: KernelsRecord,
        reader: WeightReader,
        places: Places,
        ropes: Sequence[RopeSpec],
        kept: list[object],
        scale: Callable[[Weight, int, float], int],
    ) -> None:
        self._found = found
        self._reader = reader
        self._places = places
        self._ropes = ropes
        self._kept = kept
        self._scale = scale

    def record(self, op: FusedLatentOp) -> LatentOpRecord:
        """An op's own record."""
        match op:
            case FusedLatent():
                return self._latent(op)
            case FusedAbsorb():
                return self._absorb(op)
            case FusedAttendLatent():
                return AttendRecord(latent_shape_record(op.op.attention), op.op.layer, op.source, op.target)
            case FusedExpand():
                own = op.op.attention
                weight = self._packed(own, op.op.up, lambda up: up[own.plain :], own.value, own.rank)
                return ExpandRecord(weight, op.source, op.target, own.heads, own.rank, own.value, head_stride(own.rank))

    def _latent(self, op: FusedLatent) -> LatentRecord:
        own, norm = op.op.attention, op.op.attention.norm
        return LatentRecord(
            weight=self._scale(op.op.norm, own.rank, norm.offset),
            layer=op.layer,
            source=op.source,
            rank=own.rank,
            turned=own.rope.head_dim,
            norm=Normed[norm.kind.upper()],
            rope=self._ropes.index(own.rope),
            pairs=own.rope.pairs,
            eps=norm.eps,
        )

    def _absorb(self, op: FusedAbsorb) -> AbsorbRecord:
        own, growth = op.op.attention, op.op.attention.growth
        record = AbsorbRecord(
            weight=self._packed(own, op.op.up, lambda up: up[: own.plain].T, own.rank, own.plain),
            **{name: getattr(op, name) for name in ("source", "between", "target")},
            **{name: getattr(own, name) for name in ("heads", "plain", "rank")},
            turned=own.rope.head_dim,
            apart=head_stride(own.plain),
            rope=self._ropes.index(own.rope),
            pairs=own.rope.pairs,
        )
        if growth is not None:
            record.growth, record.growth_every, record.growth_offset = growth.scale, growth.every, growth.offset
        return record

    def _packed(
        self, own: LatentAttention, weight: Weight, part: Callable[[Tensor], Tensor], columns: int, inputs: int
    ) -> int:
        """The address of each head's part [columns, inputs] of what makes keys and values, packed."""
        found = self._found

        def fill(to: Tensor) -> None:
            for packed, up in zip(to, by_head(own, self._reader.read(weight)), strict=True):
                head = part(up).contiguous()
                found.pack(head.data_ptr(), columns, inputs, packed.data_ptr(), thread_count())

        shape = [own.heads, found.packed_elements(columns, inputs, 0)]
        placed = self._places.place(shape, self._reader.dtype, fill)
        self._kept.append(placed)
        return placed.data_ptr()
