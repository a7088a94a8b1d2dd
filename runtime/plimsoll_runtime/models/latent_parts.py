"""What the CPU kernels read of latent attention's ops and their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from plimsoll_kernels.cpu.latent_records import AbsorbRecord, ExpandRecord, LatentRecord
from plimsoll_kernels.cpu.op_records import AttendRecord, Normed
from plimsoll_kernels.cpu.places import Places
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_kernels.cpu.threads import thread_count
from plimsoll_runtime.models.fused_latent import (
    FusedAbsorb,
    FusedAttendLatent,
    FusedExpand,
    FusedLatent,
    FusedLatentOp,
    apart,
)
from plimsoll_runtime.models.ops.latent import by_head
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.shape_records import latent_shape_record
from plimsoll_runtime.models.spec.attention import LatentAttention
from plimsoll_runtime.models.spec.rope import RopeSpec
from plimsoll_runtime.models.weights import WeightReader

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
                return ExpandRecord(weight, op.source, op.target, own.heads, own.rank, own.value, apart(own.rank))

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
            apart=apart(own.plain),
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
