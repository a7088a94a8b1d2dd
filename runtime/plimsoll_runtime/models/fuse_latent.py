"""What the CPU kernels make of latent attention's ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plimsoll_runtime.models.fusable import UnfusableError
from plimsoll_runtime.models.fused_latent import (
    FusedAbsorb,
    FusedAttendLatent,
    FusedExpand,
    FusedLatent,
    FusedLatentOp,
    apart,
)
from plimsoll_runtime.models.fused_ops import FusedNorm
from plimsoll_runtime.models.fused_values import Values
from plimsoll_runtime.models.ops.latent import Absorb, AttendLatent, Expand, Latent
from plimsoll_runtime.models.ops.op import Op

LatentOp = Latent | Absorb | AttendLatent | Expand


def over_vectors(values: Values, op: LatentOp, rest: Sequence[Op]) -> Iterator[FusedLatentOp | FusedNorm]:
    """What an op becomes, with those that come after it."""
    own = op.attention
    width, kept = own.rank + own.rope.head_dim, own.heads * apart(own.rank)
    [name] = op.writes
    match op:
        case Latent():
            source = values.floats(op.reads[0], width)
            values.at += 1
            values.changed(name, width, source)
            yield FusedLatent(op, _attending(op, rest).layer, source)
        case Absorb():
            source = values.floats(op.reads[0], own.heads * (own.plain + own.rope.head_dim))
            values.at += 1
            between = values.scratch("absorbed", own.heads * apart(own.plain))
            yield FusedAbsorb(op, source, between, values.written(name, own.heads * width, operands=True))
        case AttendLatent():
            source = yield from values.operands(op.reads[0], own.heads * width)
            values.at += 1
            yield FusedAttendLatent(op, source, values.written(name, kept, operands=True, beside=source))
        case Expand():
            source = yield from values.operands(op.reads[0], kept)
            values.at += 1
            if not values.is_multiplied(name):
                raise UnfusableError("gives values of vectors to products alone")
            yield FusedExpand(op, source, values.written(name, own.heads * own.value, operands=True, beside=source))


def _attending(op: Latent, rest: Sequence[Op]) -> AttendLatent:
    """The one op that reads the vectors, which lie in the cache alone."""
    readers = [each for each in rest if set(op.writes) & set(each.reads)]
    match readers[:1]:
        case [AttendLatent() as attend] if (
            op.reads == op.writes == attend.reads[1:] and attend.attention == op.attention
        ):
            again = next((n for n, each in enumerate(rest) if set(op.writes) & set(each.writes)), len(rest))
            if not any(set(op.writes) & set(each.reads) for each in rest[rest.index(attend) + 1 : again + 1]):
                return attend
    raise UnfusableError("keeps vectors that one op attends to")
