"""Ops of the CPU kernels over columns of rows, and those that keep something of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.convolve import Convolve
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.scale import Scale

ColumnsOp = Scale | Multiply | Convolve
"""They read columns wherever those lie, so that what splits a value copies nothing for them."""


class Part(NamedTuple):
    """Columns of a place; see PlimsollPart."""

    place: int
    first: int


@dataclass(frozen=True, slots=True)
class FusedColumns:
    """Columns, in the order in which the op reads its values, to a place; all floats, but what gates open and a target
    may be operands.
    """

    op: ColumnsOp
    sources: tuple[Part, ...]
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind
