"""Captures CUDA graphs: capture sizes, the capture at warm-up within bounds of time and memory, and the graph of a
step.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from plimsoll_runtime.execution.device.faults import fault_of
from plimsoll_runtime.execution.inputs.step_rows import StepRows


@dataclass(frozen=True, slots=True)
class Captured:
    """Captured work: `replay` repeats it, over the tensors that the capture read, and leaves its result in `out`."""

    out: Tensor
    replay: Callable[[], None]


class Capture(Protocol):
    """Captures device work as a CUDA graph, which can be replayed."""

    @property
    def used(self) -> int:
        """Bytes of the device that all processes hold; the difference around a capture is its cost."""

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        """Capture `work`, which may only allocate device memory and must not wait for the device.

        `out` has no result before the first replay. Raises RuntimeError if the work cannot be captured; errors of the
        work itself are raised unchanged.
        """


class CudaCapture:
    """Captures on a stream of its own. All graphs share one memory pool, because only one of them runs at a time.

    So an output is valid until another graph is replayed.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._device = device

    @property
    def used(self) -> int:
        """Bytes used, as the driver reports them, because a graph takes memory outside torch's allocator."""
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free)

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        """Capture work. It runs twice before, to compile its kernels and allocate the workspaces of its libraries."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
            work()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads (one that copies blocks to the host, for example) may allocate at the same time.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            out = work()
        return Captured(out, graph.replay)


logger = logging.getLogger(__name__)

Clock = Callable[[], float]
OnProgress = Callable[[float], None]
"""Called with the progress, from 0 to 1."""


def no_progress(fraction: float) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class CaptureBounds:
    """No capture starts after `seconds`, or once graphs have taken `nbytes` bytes of the device."""

    seconds: float
    nbytes: int


def no_drop() -> None:
    """Forget nothing."""


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A graph to capture, of `rows` rows of a kind ("decodes"). `add` captures it and raises errors of the capture;
    `drop` forgets it, if it was captured.
    """

    kind: str
    rows: int
    add: Callable[[], None]
    drop: Callable[[], None] = no_drop


class CaptureFailure(NamedTuple):
    """Why a graph was not captured. `short`: the device has too little memory for any more graphs."""

    text: str
    short: bool


class Agreement(Protocol):
    """Decides about captures, if several ranks must have the same graphs."""

    def bound(self, request: CaptureRequest, reached: str) -> str:
        """Return the bound that ends all captures, before a graph is captured; empty if it is to be captured.

        `reached`: the bound that is reached here; empty if none is.
        """

    def captured(self, request: CaptureRequest) -> CaptureFailure | None:
        """Capture a graph; return why it is not to be used, if it is not. Raises the error of a device that has
        failed.
        """


class Alone:
    """The decisions of an engine without other ranks."""

    def bound(self, request: CaptureRequest, reached: str) -> str:
        return reached

    def captured(self, request: CaptureRequest) -> CaptureFailure | None:
        return attempted(request, RuntimeError)


def attempted(request: CaptureRequest, caught: type[Exception]) -> CaptureFailure | None:
    """Capture a graph; return the error if it is one of the class `caught` after which the process can continue."""
    try:
        request.add()
    except caught as error:
        if not fault_of(error).process_can_go_on:
            raise
        return CaptureFailure(str(error), isinstance(error, torch.OutOfMemoryError))
    return None


ALONE = Alone()


def in_order(wanted: Sequence[CaptureRequest]) -> list[CaptureRequest]:
    """Return requests in order: the most rows first, so that the memory pool of all graphs is sized once, then rising.

    If time runs out, graphs of many rows are missing, for which launches are the smallest part of the work.
    """
    rising = sorted(wanted, key=lambda each: each.rows)
    return [*rising[-1:], *rising[:-1]]


def capture_all(
    wanted: Sequence[CaptureRequest],
    capture: Capture,
    bounds: CaptureBounds,
    progress: OnProgress,
    clock: Clock = time.monotonic,
    agreement: Agreement = ALONE,
) -> None:
    """Capture all requests in order and log which were captured and which were not.

    If a capture fails, its kind is not tried again; if memory is short, nothing is. Both log a warning. Everything that
    depends on this process (its clock, memory and failures) passes through `agreement`.
    """
    began, before = clock(), capture.used
    missing: list[CaptureRequest] = []
    failed: set[str] = set()
    reached = ""
    for number, each in enumerate(in_order(wanted)):
        if not reached and each.kind not in failed:
            reached = agreement.bound(each, _reached(bounds, clock() - began, capture.used - before))
        if reached or each.kind in failed:
            missing.append(each)
            continue
        if (failure := agreement.captured(each)) is not None:
            each.drop()
            failed |= {other.kind for other in wanted} if failure.short else {each.kind}
            missing.append(each)
            logger.warning(
                "no CUDA graph for %d %s (%s): sizes without one are launched kernel by kernel",
                each.rows,
                each.kind,
                failure.text,
            )
        progress((number + 1) / len(wanted))
    logger.info(
        "captured %d of %d graphs in %.1f s and %.0f MiB%s",
        len(wanted) - len(missing),
        len(wanted),
        clock() - began,
        (capture.used - before) / 2**20,
        _without(missing, reached),
    )


def _reached(bounds: CaptureBounds, seconds: float, nbytes: int) -> str:
    """Return the bound that is reached; empty if none is."""
    if seconds >= bounds.seconds:
        return f"the bound of {bounds.seconds:g} s (--graph-seconds)"
    return f"the bound of {bounds.nbytes / 2**20:.0f} MiB (--graph-memory)" if nbytes >= bounds.nbytes else ""


def _without(missing: Sequence[CaptureRequest], reached: str) -> str:
    """Return the end of the log line: the bound that was reached, and the requests without a graph; empty if none is
    missing.
    """
    if not missing:
        return ""
    kinds = dict.fromkeys(each.kind for each in missing)
    rows = {kind: sorted({each.rows for each in missing if each.kind == kind}) for kind in kinds}
    listed = "; ".join(f"{', '.join(map(str, rows[kind]))} {kind}" for kind in kinds)
    return f"{f'; {reached} is reached' if reached else ''}; launched kernel by kernel: {listed}"


def batch_buckets(most: int) -> list[int]:
    """Return the capture sizes for up to `most` sequences with one row each: 1, 2, 4, 8, then sizes in steps of 8, and
    from 64 on in steps of a quarter of the next lower power of 2; the last is `most`.

    So a batch is padded by at most 8 rows, or by a quarter of itself. Raises ValueError for less than one sequence.
    """
    if most < 1:
        raise ValueError(f"a batch must allow at least 1 sequence, not {most}")
    sizes, size = [1, 2, 4], 8
    while size < most:
        sizes.append(size)
        size += max(8, (1 << (size.bit_length() - 1)) // 4)
    return [*(s for s in sizes if s < most), most]


def row_buckets(most: int) -> list[int]:
    """Return the capture sizes of steps with chunks: powers of two from 16 on, and one and a half times those: 16, 24,
    32, 48, 64; the last is `most`.

    So a step of more than 16 rows is padded by at most a half of itself, by a quarter on average. Raises ValueError for
    less than one row.
    """
    if most < 1:
        raise ValueError(f"a step must allow at least 1 row, not {most}")
    sizes = [size for k in range(4, most.bit_length()) for size in (1 << k, 3 << (k - 1))]
    return [*(s for s in sizes if s < most), most]


def bucket_of(count: int, buckets: Sequence[int]) -> int | None:
    """Return the smallest of the capture sizes that is at least `count`; None if all are smaller."""
    index = bisect_left(buckets, count)
    return buckets[index] if index < len(buckets) else None


class Graphs(Protocol):
    """Graphs of one kind of work, which are captured once by a caller."""

    def wanted(self) -> Sequence[CaptureRequest]:
        """Return requests for all graphs of this kind."""


class StepGraphs(Graphs, Protocol):
    """Graphs of forward passes, for some kinds and sizes of steps."""

    def run(self, rows: StepRows) -> Tensor | None:
        """Return hidden states `[T, hidden]` of a step, valid until the next call; None if it has no graph.

        Sends the rows together with the other contents of the upload buffer.
        """


class FirstOf:
    """Graphs of several kinds: a step is replayed from the first that has a graph of it."""

    def __init__(self, kinds: Sequence[StepGraphs]) -> None:
        self._kinds = kinds

    def wanted(self) -> list[CaptureRequest]:
        return [each for kind in self._kinds for each in kind.wanted()]

    def run(self, rows: StepRows) -> Tensor | None:
        for kind in self._kinds:
            if (hidden := kind.run(rows)) is not None:
                return hidden
        return None


NO_GRAPHS = FirstOf(())
"""No graphs: every step is launched kernel by kernel."""
