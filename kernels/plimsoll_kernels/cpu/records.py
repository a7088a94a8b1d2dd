"""The library's plain C records and functions (source/interface.h) as Python sees them.

Those that a model is made of are in op_records.py.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_void_p

from plimsoll_kernels.cpu.op_records import LinearRecord, ModelRecord, ShapeRecord


class CacheRecord(Structure):
    """PlimsollCache."""

    _fields_ = (
        ("keys", POINTER(c_void_p)),
        ("values", POINTER(c_void_p)),
        ("head_strides", POINTER(c_int64)),
        ("block_strides", POINTER(c_int64)),
        ("groups", POINTER(c_int32)),
        ("block_size", c_int32),
    )


class GroupRecord(Structure):
    """PlimsollGroup."""

    _fields_ = tuple((name, c_void_p) for name in ("cells", "contexts", "blocks", "first_blocks"))


class StepRecord(Structure):
    """PlimsollStep."""

    _fields_ = (
        ("rows", c_int32),
        ("sequences", c_int32),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("turns", POINTER(c_void_p)),
        ("groups", POINTER(GroupRecord)),
        ("first_rows", c_void_p),
        *((name, c_void_p) for name in ("hidden", "workspace")),
        ("seconds", POINTER(c_double)),
        *((name, c_void_p) for name in ("states", "state_rows")),
    )


class SamplingRecord(Structure):
    """PlimsollSampling."""

    _fields_ = (
        ("rows", c_int32),
        ("width", c_int32),
        ("stride", c_int64),
        *((name, c_void_p) for name in ("logits", "temperature", "top_k", "top_p", "min_p", "uniform")),
        *((name, c_void_p) for name in ("masked", "masks", "best", "tokens", "workspace")),
    )


class ReportsRecord(Structure):
    """PlimsollReports."""

    _fields_ = (
        ("rows", c_int32),
        ("width", c_int32),
        ("stride", c_int64),
        *((name, c_void_p) for name in ("logits", "tokens", "alternatives")),
        ("most", c_int32),
        *((name, c_void_p) for name in ("chosen", "ranks", "top_tokens", "top", "workspace")),
    )


_ATTENTION = (
    *(c_void_p, c_void_p, c_void_p, c_void_p, POINTER(ShapeRecord), c_int32),
    *(POINTER(CacheRecord), POINTER(StepRecord), c_int32),
)


class KernelsRecord(Structure):
    """PlimsollKernels: the functions of one instruction set."""

    _fields_ = (
        ("name", c_char_p),
        ("lanes", c_int32),
        ("packed_elements", ctypes.CFUNCTYPE(c_int64, c_int32, c_int32, c_int32)),
        ("pack", ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_int32, c_void_p, c_int32)),
        ("pack_gated", ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int32, c_int32, c_void_p, c_int32)),
        ("linear", ctypes.CFUNCTYPE(None, c_void_p, c_int32, POINTER(LinearRecord), c_void_p, c_int32)),
        ("workspace", ctypes.CFUNCTYPE(c_int64, POINTER(ModelRecord), c_int32, c_int32)),
        (
            "forward",
            ctypes.CFUNCTYPE(None, POINTER(ModelRecord), POINTER(CacheRecord), POINTER(StepRecord), c_int32),
        ),
        ("attention_workspace", ctypes.CFUNCTYPE(c_int64, c_int32, c_int32)),
        ("attention", ctypes.CFUNCTYPE(None, *_ATTENTION)),
        ("sampling_workspace", ctypes.CFUNCTYPE(c_int64, c_int32, c_int32)),
        ("sample", ctypes.CFUNCTYPE(None, POINTER(SamplingRecord), c_int32)),
        ("report", ctypes.CFUNCTYPE(None, POINTER(ReportsRecord), c_int32)),
        ("peak", ctypes.CFUNCTYPE(c_double, c_int32)),
    )
