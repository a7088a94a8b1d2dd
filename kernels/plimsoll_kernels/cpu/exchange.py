"""Sums and broadcasts between the ranks of a group, the processes that compute one model together.

All ranks make the same calls in the same order, one at a time each. All ranks get the same bits, because parts are
added in the order of the ranks. Ranks of one process must not exchange within steps of `CpuDecoder`: the steps of a
process run one at a time.
"""

from __future__ import annotations

import ctypes
import os
import threading
from types import TracebackType
from typing import NamedTuple, Self

import torch
from torch import Tensor

from plimsoll_kernels.cpu.exchange_records import Collective, ExchangeStatusRecord, Failure
from plimsoll_kernels.cpu.library import library

FEWEST_RANKS, MOST_RANKS = 2, 16


class ExchangeError(RuntimeError):
    """An exchange failed, and so will all later calls of its group; the message says why."""

    @classmethod
    def of(cls, handle: int) -> Self:
        """Return the error of an exchange that failed."""
        return cls(_reason(_status(handle)))


class Statistics(NamedTuple):
    """Seconds of all calls of an exchange, and the part of them in which the rank waited for others."""

    seconds: float
    waiting: float


class AnyExchange:
    """The calls of an exchange, whatever connects the ranks."""

    def __init__(self, handle: int, ranks: int, rank: int) -> None:
        self.ranks = ranks
        self.rank = rank
        self._handle: int | None = handle
        self._closing = threading.Lock()
        self._functions = functions()

    @property
    def handle(self) -> int:
        """The address of the exchange, for `ReduceRecord`. Raises ExchangeError if it is closed."""
        if self._handle is None:
            raise ExchangeError(f"the exchange of rank {self.rank} is closed")
        return self._handle

    def sum(self, values: Tensor) -> None:
        """Replace a contiguous float32 tensor by the sum of the tensors of all ranks, which have the same size.

        Raises ValueError for another tensor, ExchangeError if the exchange fails.
        """
        if values.dtype is not torch.float32 or not values.is_contiguous() or values.device.type != "cpu":
            kind = "contiguous" if values.is_contiguous() else "strided"
            raise ValueError(f"sum needs a contiguous float32 tensor on the CPU; got {kind} {values.dtype}")
        if not self._functions.plimsoll_exchange_sum(self.handle, values.data_ptr(), values.numel()):
            raise ExchangeError.of(self.handle)

    def broadcast(self, buffer: bytearray | memoryview) -> None:
        """Copy the bytes of rank 0's buffer to the buffers of all ranks, which have the same size.

        Raises TypeError for a read-only or strided buffer, ExchangeError if the exchange fails.
        """
        size = memoryview(buffer).nbytes
        memory = (ctypes.c_char * size).from_buffer(buffer)
        if not self._functions.plimsoll_exchange_broadcast(self.handle, ctypes.addressof(memory), size):
            raise ExchangeError.of(self.handle)

    def abort(self) -> None:
        """End the current and all later calls of all ranks with ExchangeError. Any thread may call it; if the exchange
        is closed, it does nothing.
        """
        with self._closing:
            if self._handle is not None:
                self._functions.plimsoll_exchange_abort(self._handle)

    def statistics(self) -> Statistics:
        """Return the seconds of this rank's calls so far. Raises ExchangeError if the exchange is closed."""
        status = _status(self.handle)
        return Statistics(status.seconds, status.waiting)

    def close(self) -> None:
        """Release the exchange's memory. No other call may be running, except `abort`."""
        with self._closing:
            if self._handle is not None:
                self._functions.plimsoll_exchange_close(self._handle)
                self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Exchange(AnyExchange):
    """An exchange over shared memory, between the ranks of one machine.

    `descriptor`: a file in memory (os.memfd_create) of at least `segment_bytes(ranks)` zeros, which all ranks open; it
    may be closed afterwards. A segment serves one group. With `check`, a rank whose call differs from another's (kind
    or bytes) aborts the group. Raises ValueError if the segment or the rank is unusable.
    """

    def __init__(self, descriptor: int, ranks: int, rank: int, *, check: bool = False) -> None:
        check_segment(descriptor, ranks)
        check_rank(ranks, rank)
        opened = functions().plimsoll_exchange_open(descriptor, ranks, rank, check)
        if opened < 0:
            raise ValueError(f"cannot map the segment of the exchange: {os.strerror(-opened)}")
        super().__init__(opened, ranks, rank)


def segment_bytes(ranks: int) -> int:
    """Return the bytes of a segment for this number of ranks. Raises ValueError if the number is not supported."""
    check_rank(ranks, 0)
    size: int = functions().plimsoll_exchange_bytes(ranks)
    return size


def rounds_of(descriptor: int, ranks: int) -> list[int]:
    """Return how many rounds of calls each rank of a segment has begun: of ranks that wait for each other, the one with
    the fewest is late. Raises ValueError if the segment is unusable.
    """
    check_segment(descriptor, ranks)
    rounds = (ctypes.c_int64 * ranks)()
    if error := functions().plimsoll_exchange_rounds(descriptor, ranks, rounds):
        raise ValueError(f"cannot map the segment of the exchange: {os.strerror(error)}")
    return list(rounds)


def abort_segment(descriptor: int, ranks: int) -> None:
    """Abort the group of a segment from a process that is not one of its ranks. Raises ValueError if the segment is
    unusable.
    """
    check_segment(descriptor, ranks)
    if error := functions().plimsoll_exchange_abort_segment(descriptor, ranks):
        raise ValueError(f"cannot map the segment of the exchange: {os.strerror(error)}")


def check_segment(descriptor: int, ranks: int) -> None:
    """Raise ValueError if a segment is too small for this number of ranks, or is no open file."""
    needed = segment_bytes(ranks)
    try:
        size = os.fstat(descriptor).st_size
    except OSError as error:
        raise ValueError(f"the segment of the exchange is no open file: {error}") from error
    if size < needed:
        raise ValueError(f"the segment of an exchange of {ranks} ranks needs {needed} bytes; this one has {size}")


def check_rank(ranks: int, rank: int) -> None:
    """Raise ValueError if an exchange cannot have this number of ranks, or lacks this rank."""
    if not FEWEST_RANKS <= ranks <= MOST_RANKS:
        raise ValueError(f"an exchange has {FEWEST_RANKS} to {MOST_RANKS} ranks; got {ranks}")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of the {ranks} ranks from 0 on")


def functions() -> ctypes.CDLL:
    """Return the library. Raises ValueError if it is not available here."""
    found = library()
    if found is None:
        raise ValueError("an exchange needs the CPU kernels, which are not available here")
    return found


def _status(handle: int) -> ExchangeStatusRecord:
    status: ExchangeStatusRecord = functions().plimsoll_exchange_status(handle).contents
    return status


def _reason(status: ExchangeStatusRecord) -> str:
    if status.failure == Failure.MISMATCH:
        calls = ((status.rank, status.kind, status.size), (status.other, status.other_kind, status.other_size))
        texts = [
            f"rank {r} called {Collective(kind).name.lower()} with {size} bytes" for r, kind, size in sorted(calls)
        ]
        return f"the ranks' calls differ: {', '.join(texts)}"
    if status.failure == Failure.CLOSED:
        why = os.strerror(status.error) if status.error else "end of stream"
        return f"the connection to rank {status.rank} is closed: {why}"
    return "the exchange was aborted"
