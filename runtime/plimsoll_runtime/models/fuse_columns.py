"""What becomes of ops over columns, and of those that keep something of a sequence. See fuse.py."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll_runtime.models.fusable import UnfusableError
from plimsoll_runtime.models.fused_columns import ByColumn, ColumnsOp, FusedColumns
from plimsoll_runtime.models.fused_values import Values
from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.convolve import Convolve
from plimsoll_runtime.models.ops.delta_rule import DeltaRule
from plimsoll_runtime.models.ops.dual_scan import DualScan
from plimsoll_runtime.models.ops.gated_norm import GatedNorm
from plimsoll_runtime.models.ops.gated_recurrence import GatedRecurrence
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.selective_scan import SelectiveScan
from plimsoll_runtime.models.ops.split import Split


def split(values: Values, op: Split) -> Iterator[FusedColumns]:
    """Parts stay where they lie for those that read columns; the others get copies."""
    [whole] = op.reads
    values.at += 1
    if whole not in op.writes and values.lives(whole):
        raise UnfusableError(f"splits {whole}, which is read as a whole behind that")
    values.views(whole, [*zip(op.writes, op.widths, strict=True)])
    for name, width in zip(op.writes, op.widths, strict=True):
        if values.lives(name) and not values.is_read_by(name, _reads_columns):
            yield _copied(values, name, width, op.kind)


def _reads_columns(op: Op | None) -> bool:
    return isinstance(op, ColumnsOp | Split)


def _copied(values: Values, name: str, width: int, kind: OpKind) -> FusedColumns:
    source = values.part(name, width)
    target = values.written(name, width, operands=values.is_multiplied(name), apart=[source.place])
    return FusedColumns(Scale((width,), (1.0,), (name,), (name,), kind), (source,), target)


def over_columns(values: Values, op: ColumnsOp) -> Iterator[FusedColumns]:
    """One of their own ops. Where it may write where it reads it does if that begins with its place's first column."""
    widths, width = widths_of(op)
    sources = tuple(values.part(name, each) for name, each in zip(op.reads, widths, strict=True))
    for number, (name, source) in enumerate(zip(op.reads, sources, strict=True)):
        opened = isinstance(op, Multiply) and number == 0
        if not opened and not values.floats_lie(source.place):
            raise UnfusableError(f"gives {name} to products alone")
    scratch = None
    if isinstance(op, GatedRecurrence):
        scratch = values.scratch("gates", 2 * width, operands=False)
    values.at += 1
    [name] = op.writes
    apart = [source.place for source in sources if source.first or not isinstance(op, ByColumn)]
    target = values.written(name, width, operands=values.is_multiplied(name), apart=apart)
    yield FusedColumns(op, sources, target, scratch)


def widths_of(op: ColumnsOp) -> tuple[tuple[int, ...], int]:
    """Of what an op reads, and of what it writes."""
    match op:
        case Scale():
            return (sum(op.widths),), sum(op.widths)
        case Multiply() | GatedNorm():
            return (op.width, op.width), op.width
        case Convolve():
            return (op.weight.shape[0],), op.weight.shape[0]
        case DualScan():
            return (op.shape.mixed, op.shape.heads), op.shape.inner
        case DeltaRule():
            heads = op.shape.value_heads
            return (op.shape.mixed, heads, heads), op.shape.values
        case SelectiveScan():
            width, count = op.decay.shape
            return (width, width, count, count), width
        case GatedRecurrence():
            width = op.decay.shape[0]
            return (width,), width
