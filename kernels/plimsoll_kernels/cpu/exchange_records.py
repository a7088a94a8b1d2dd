"""The state of an exchange between ranks (exchange.py), which C++ reports to Python."""

# Without future annotations: annotations of records are read as types, and evaluating strings takes milliseconds.

import ctypes
from ctypes import POINTER, c_int32, c_int64, c_void_p
from enum import IntEnum

from plimsoll_kernels.cpu.c_records import CRecord, Double, Int, Long, c_record


class Collective(IntEnum):
    """The kind of a call that all ranks of a group make together."""

    SUM = 0
    BROADCAST = 1


class Failure(IntEnum):
    """Why an exchange failed.

    ABORTED: a rank or another process called abort. MISMATCH: two ranks made different calls. CLOSED: a rank's
    connection ended.
    """

    NONE = 0
    ABORTED = 1
    MISMATCH = 2
    CLOSED = 3


@c_record
class ExchangeStatusRecord(CRecord):
    """An exchange's failure and its statistics. A failure stays: all later calls fail with it."""

    failure: Failure
    rank: Int  # the rank that was closed, or one of the ranks of a mismatch
    other: Int  # the other rank of a mismatch
    kind: Collective  # the call of `rank`
    other_kind: Collective
    error: Int  # the errno of a closed connection; 0: the end of its stream
    size: Long  # bytes of the call of `rank`
    other_size: Long
    seconds: Double  # of all calls
    waiting: Double  # the part of `seconds` in which the rank waited for others


def declare(library: ctypes.CDLL) -> None:
    """Set the types of the library's functions on exchanges (source/exchange.cpp)."""
    numbers = (c_int32, c_int32, c_int32)
    for name, result, arguments in (
        ("bytes", c_int64, (c_int32,)),
        ("open", c_int64, (c_int32, *numbers)),
        ("connect", c_int64, (POINTER(c_int32), *numbers)),
        ("sum", c_int32, (c_void_p, c_void_p, c_int64)),
        ("broadcast", c_int32, (c_void_p, c_void_p, c_int64)),
        ("abort", None, (c_void_p,)),
        ("rounds", c_int32, (c_int32, c_int32, POINTER(c_int64))),
        ("abort_segment", c_int32, (c_int32, c_int32)),
        ("close", None, (c_void_p,)),
        ("status", POINTER(ExchangeStatusRecord), (c_void_p,)),
    ):
        function = getattr(library, f"plimsoll_exchange_{name}")
        function.restype, function.argtypes = result, arguments
