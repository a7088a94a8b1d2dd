"""What a model is to the kernels: its ops, one after the other, and the places of their values (source/interface.h)."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_void_p
from enum import IntEnum
from typing import ClassVar

from plimsoll_kernels.cpu.columns_records import (
    ColumnsRecord,
    ConvolveRecord,
    DeltaRuleRecord,
    DualScanRecord,
    GatedNormRecord,
    GatedRecurrenceRecord,
    MultiplyRecord,
    ScaleRecord,
    SelectiveScanRecord,
)
from plimsoll_kernels.cpu.latent_records import AbsorbRecord, ExpandRecord, LatentRecord
from plimsoll_kernels.cpu.op_kinds import Kind

RESULT = -1
"""The target of what a step is asked for, in place of a place."""
MAX_PLACES = 32
SCORE_ROWS, WIDEST = 4, 16
"""Of the scores of a route: so many rows of all experts, each of whole vectors, the widest of which has so many."""


class Into(IntEnum):
    """PlimsollInto: what a product gives."""

    FLOATS = 0
    SUM = 1
    GATED = 2
    OPERANDS = 3


class Activation(IntEnum):
    """PlimsollActivation."""

    NONE = 0
    SILU = 1
    GELU_TANH = 2
    GELU = 3
    RELU = 4
    RELU2 = 5
    SIGMOID = 6


class Normed(IntEnum):
    """PlimsollNormed."""

    AS_IS = 0
    RMS = 1
    LAYER = 2


class Rule(IntEnum):
    """PlimsollRule: how experts are chosen."""

    SOFTMAX = 0
    SIGMOID = 1
    SPARSE_MIXER = 2


class Timed(IntEnum):
    """PlimsollTimed: to which of a step's seconds an op's time is added."""

    EMBED = 0
    NORM = 1
    QKV = 2
    ROPE = 3
    ATTENTION = 4
    OUTPUT = 5
    ROUTE = 6
    EXPERTS = 7
    GATE_UP = 8
    DOWN = 9
    STATE = 10


class LinearRecord(Structure):
    """PlimsollLinear."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("inputs", c_int32), ("columns", c_int32))


class ShapeRecord(Structure):
    """PlimsollShape."""

    _fields_ = (
        *((name, c_int32) for name in ("heads", "kv_heads", "head_dim", "window", "chunk", "coarse", "whole")),
        ("scale", c_float),
        ("softcap", c_float),
        ("slopes", c_void_p),
        ("sinks", c_void_p),
        ("latent", c_int32),
        ("apart", c_int32),
    )


class PlaceRecord(Structure):
    """PlimsollPlace."""

    _fields_ = tuple((name, c_int32) for name in ("operands", "width", "narrowest"))


class EmbedRecord(Structure):
    """PlimsollEmbed."""

    kind: ClassVar = Kind.EMBED
    _fields_ = (
        *((name, c_void_p) for name in ("table", "packed", "texts")),
        *((name, c_int32) for name in ("target", "width", "vocab")),
        ("scale", c_float),
    )


class PositionsRecord(Structure):
    """PlimsollPositions."""

    kind: ClassVar = Kind.POSITIONS
    _fields_ = (("table", c_void_p), *((name, c_int32) for name in ("target", "width", "first")))


class NormRecord(Structure):
    """PlimsollNorm."""

    kind: ClassVar = Kind.NORM
    _fields_ = (
        *((name, c_void_p) for name in ("weight", "bias")),
        *((name, c_int32) for name in ("source", "target", "width", "first", "adds", "norm")),
        ("eps", c_float),
    )


class ProductRecord(Structure):
    """PlimsollProduct."""

    kind: ClassVar = Kind.PRODUCT
    _fields_ = (
        ("linear", LinearRecord),
        *((name, c_int32) for name in ("source", "target", "into", "activation")),
        *((name, c_float) for name in ("scale", "limit")),
    )


class HeadsRecord(Structure):
    """PlimsollHeads."""

    kind: ClassVar = Kind.HEADS
    _fields_ = (
        ("shape", ShapeRecord),
        *((name, c_void_p) for name in ("query_norm", "key_norm")),
        *((name, c_int32) for name in ("layer", "source", "target", "norm", "norm_step", "turned")),
        *((name, c_int32) for name in ("rope", "rotated", "pairs", "growth_offset")),
        *((name, c_float) for name in ("eps", "growth", "growth_every")),
    )


class AttendRecord(Structure):
    """PlimsollAttend."""

    kind: ClassVar = Kind.ATTEND
    _fields_ = (("shape", ShapeRecord), *((name, c_int32) for name in ("layer", "source", "target")))


class AddRecord(Structure):
    """PlimsollAdd."""

    kind: ClassVar = Kind.ADD
    _fields_ = (*((name, c_int32) for name in ("source", "added", "target", "width")), ("scale", c_float))


class RouteRecord(Structure):
    """PlimsollRoute."""

    kind: ClassVar = Kind.ROUTE
    _fields_ = (
        *((name, c_void_p) for name in ("weight", "bias", "correction")),
        *((name, c_int32) for name in ("source", "scores", "shares", "numbers", "hidden", "experts", "chosen")),
        *((name, c_int32) for name in ("rule", "groups", "open_groups", "best", "renormalised")),
        *((name, c_float) for name in ("least", "scale", "jitter")),
    )


class ExpertsRecord(Structure):
    """PlimsollExperts."""

    kind: ClassVar = Kind.EXPERTS
    _fields_ = (
        *((name, LinearRecord) for name in ("gate_up", "down")),
        *((name, c_int32) for name in ("source", "shares", "numbers", "target")),
        *((name, c_int32) for name in ("experts", "chosen", "activation", "adds", "gated", "weighs_inputs")),
        *((name, c_float) for name in ("scale", "alpha", "limit")),
    )


class GateRecord(Structure):
    """PlimsollGate."""

    kind: ClassVar = Kind.GATE
    _fields_ = (("weight", c_void_p), *((name, c_int32) for name in ("source", "target", "inputs", "width")))


AnyOp = (
    EmbedRecord
    | PositionsRecord
    | NormRecord
    | ProductRecord
    | HeadsRecord
    | AttendRecord
    | AddRecord
    | RouteRecord
    | ExpertsRecord
    | GateRecord
    | ColumnsRecord
    | LatentRecord
    | AbsorbRecord
    | ExpandRecord
)


class _AnyOp(ctypes.Union):
    _fields_ = (
        ("embed", EmbedRecord),
        ("positions", PositionsRecord),
        ("norm", NormRecord),
        ("product", ProductRecord),
        ("heads", HeadsRecord),
        ("attend", AttendRecord),
        ("add", AddRecord),
        ("route", RouteRecord),
        ("experts", ExpertsRecord),
        ("gate", GateRecord),
        ("scale", ScaleRecord),
        ("multiply", MultiplyRecord),
        ("convolve", ConvolveRecord),
        ("gated_norm", GatedNormRecord),
        ("dual_scan", DualScanRecord),
        ("delta_rule", DeltaRuleRecord),
        ("selective_scan", SelectiveScanRecord),
        ("gated_recurrence", GatedRecurrenceRecord),
        ("latent", LatentRecord),
        ("absorb", AbsorbRecord),
        ("expand", ExpandRecord),
    )


class OpRecord(Structure):
    """PlimsollOp."""

    _anonymous_ = ("any",)
    _fields_ = (("kind", c_int32), ("timed", c_int32), ("any", _AnyOp))

    @staticmethod
    def of(op: AnyOp, timed: Timed) -> OpRecord:
        """One of the kinds, which is copied."""
        record = OpRecord(op.kind, timed)
        setattr(record, op.kind.name.lower(), op)
        return record


class ModelRecord(Structure):
    """PlimsollModel."""

    _fields_ = (
        ("ops", POINTER(OpRecord)),
        ("places", POINTER(PlaceRecord)),
        *((name, c_int32) for name in ("num_ops", "num_places")),
    )
