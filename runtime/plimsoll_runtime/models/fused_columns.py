"""Ops of the CPU kernels over columns of rows, and those that keep something of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.convolve import Convolve
from plimsoll_runtime.models.ops.delta_rule import DeltaRule
from plimsoll_runtime.models.ops.dual_scan import DualScan
from plimsoll_runtime.models.ops.gated_norm import GatedNorm
from plimsoll_runtime.models.ops.gated_recurrence import GatedRecurrence
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.selective_scan import SelectiveScan

ByColumn = Scale | Multiply | Convolve | GatedNorm
"""What they write of a row depends on no other column, or only where it was read: they may write where they read."""
Scan = DualScan | DeltaRule | SelectiveScan | GatedRecurrence
ColumnsOp = ByColumn | Scan
"""They read columns wherever those lie, so that what splits a value copies nothing for them."""


class Part(NamedTuple):
    """Columns of a place; see PlimsollPart."""

    place: int
    first: int


@dataclass(frozen=True, slots=True)
class FusedColumns:
    """Columns, in the order in which the op reads its values, to a place; all floats, but what gates open and a target
    may be operands. `scratch`: where it works, if it needs a place for that.
    """

    op: ColumnsOp
    sources: tuple[Part, ...]
    target: int
    scratch: int | None = None

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind
