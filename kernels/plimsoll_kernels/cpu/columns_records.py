"""Records of the ops over columns of rows, and of those that keep something of a sequence (source/columns_ops.h)."""

from __future__ import annotations

from ctypes import Structure, c_int32, c_void_p
from typing import ClassVar

from plimsoll_kernels.cpu.op_kinds import Kind

MAX_TAPS = 16


class PartRecord(Structure):
    """PlimsollPart."""

    _fields_ = (("place", c_int32), ("first", c_int32))


class ScaleRecord(Structure):
    """PlimsollScale."""

    kind: ClassVar = Kind.SCALE
    _fields_ = (("factors", c_void_p), ("source", PartRecord), *((name, c_int32) for name in ("target", "width")))


class MultiplyRecord(Structure):
    """PlimsollMultiply."""

    kind: ClassVar = Kind.MULTIPLY
    _fields_ = (
        *((name, PartRecord) for name in ("source", "gate")),
        *((name, c_int32) for name in ("target", "width", "activation")),
    )


class ConvolveRecord(Structure):
    """PlimsollConvolve."""

    kind: ClassVar = Kind.CONVOLVE
    _fields_ = (
        *((name, c_void_p) for name in ("weight", "bias")),
        ("source", PartRecord),
        *((name, c_int32) for name in ("state", "target", "width", "taps", "activation")),
    )
