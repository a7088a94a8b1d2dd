"""Records of the ops over columns of rows, and of those that keep something of a sequence (source/columns_ops.h)."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_void_p
from typing import ClassVar

from plimsoll_kernels.cpu.op_kinds import Kind

MAX_TAPS, MAX_KEY_DIM, MAX_STATES = 16, 256, 256
"""Of a convolution, of a head's keys in the delta rule, and of a column in Mamba's scan."""


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


class GatedNormRecord(Structure):
    """PlimsollGatedNorm."""

    kind: ClassVar = Kind.GATED_NORM
    _fields_ = (
        ("weight", c_void_p),
        *((name, PartRecord) for name in ("source", "gate")),
        *((name, c_int32) for name in ("target", "width", "groups", "after")),
        ("eps", c_float),
    )


class DualScanRecord(Structure):
    """PlimsollDualScan."""

    kind: ClassVar = Kind.DUAL_SCAN
    _fields_ = (
        *((name, c_void_p) for name in ("decay", "skip", "step_bias")),
        *((name, PartRecord) for name in ("mixed", "times")),
        *((name, c_int32) for name in ("state", "target", "heads", "head_dim", "groups", "width")),
        *((name, c_float) for name in ("least", "most")),
    )


class DeltaRuleRecord(Structure):
    """PlimsollDeltaRule."""

    kind: ClassVar = Kind.DELTA_RULE
    _fields_ = (
        *((name, c_void_p) for name in ("decay", "step_bias")),
        *((name, PartRecord) for name in ("mixed", "writes", "times")),
        *((name, c_int32) for name in ("state", "target")),
        *((name, c_int32) for name in ("key_heads", "value_heads", "key_dim", "value_dim", "in_turns")),
    )


class SelectiveScanRecord(Structure):
    """PlimsollSelectiveScan."""

    kind: ClassVar = Kind.SELECTIVE_SCAN
    _fields_ = (
        *((name, c_void_p) for name in ("decay", "skip", "step_bias")),
        *((name, PartRecord) for name in ("source", "times", "inputs", "outputs")),
        *((name, c_int32) for name in ("state", "target", "width", "count")),
    )


class GatedRecurrenceRecord(Structure):
    """PlimsollGatedRecurrence."""

    kind: ClassVar = Kind.GATED_RECURRENCE
    _fields_ = (
        *((name, c_void_p) for name in ("decay", "recurrent", "inputs", "recurrent_bias", "inputs_bias")),
        ("source", PartRecord),
        *((name, c_int32) for name in ("state", "gates", "target", "width", "heads")),
    )


ColumnsRecord = (
    ScaleRecord
    | MultiplyRecord
    | ConvolveRecord
    | GatedNormRecord
    | DualScanRecord
    | DeltaRuleRecord
    | SelectiveScanRecord
    | GatedRecurrenceRecord
)
