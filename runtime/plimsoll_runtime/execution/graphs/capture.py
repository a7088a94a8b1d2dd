"""Captures CUDA graphs: the capture sizes, the capture at warm-up within bounds of time and memory, and the choice of a
graph for a step.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from plimsoll_runtime.execution.device.faults import fault_of
from plimsoll_runtime.execution.inputs.step_rows import StepRows


@dataclass(frozen=True, slots=True)
class Captured:
    """What work became: `replay` does it again, over the tensors it read then, and leaves its result in `out`."""

    out: Tensor
    replay: Callable[[], None]


class Capture(Protocol):
    """A way to keep work for later."""

    @property
    def used(self) -> int:
        """Bytes of the device that are taken now, by whomever: what a capture adds is what it has cost."""

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        """Capture work that allocates nothing but on the device, and never waits for it. It is not done yet.

        Raises RuntimeError when it cannot be captured; errors of the work itself come out as they are.
        """


class CudaCapture:
    """Captures on a stream of its own; all graphs share one memory pool, since only one of them runs at a time.

    An output is therefore valid until another graph is replayed.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._device = device

    @property
    def used(self) -> int:
        """See Capture: by the driver, for a graph takes memory beside that of torch's allocator."""
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free)

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        """See Capture. The work runs twice before: its kernels are compiled and its libraries have their workspaces."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
            work()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads (a copy of blocks to the host, say) may go on allocating meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            out = work()
        return Captured(out, graph.replay)


logger = logging.getLogger(__name__)

Clock = Callable[[], float]
OnProgress = Callable[[float], None]
"""Gets the progress, from 0 to 1."""


def no_progress(fraction: float) -> None:
    """Ignores progress."""


@dataclass(frozen=True, slots=True)
class CaptureBounds:
    """No capture begins once so many seconds have gone by, or graphs have taken so many bytes of the device."""

    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A graph that there is to be: of so many `rows` of a kind ("decodes"). `add` raises what capturing raises."""

    kind: str
    rows: int
    add: Callable[[], None]


def in_order(wanted: Sequence[CaptureRequest]) -> list[CaptureRequest]:
    """The most rows first, so that the memory that graphs share is sized once; then from the fewest on.

    Where time runs out, graphs of many rows are missing: beside their work launches cost least.
    """
    rising = sorted(wanted, key=lambda each: each.rows)
    return [*rising[-1:], *rising[:-1]]


def capture_all(
    wanted: Sequence[CaptureRequest],
    capture: Capture,
    bounds: CaptureBounds,
    progress: OnProgress,
    clock: Clock = time.monotonic,
) -> None:
    """Capture what is wanted, in order; one line of the log says what was, and what was not.

    A kind whose capture fails costs one warning and is not tried again; where memory is short, none is.
    """
    began, before = clock(), capture.used
    missing: list[CaptureRequest] = []
    failed: set[str] = set()
    reached = ""
    for number, each in enumerate(in_order(wanted)):
        reached = reached or _reached(bounds, clock() - began, capture.used - before)
        if reached or each.kind in failed:
            missing.append(each)
            continue
        try:
            each.add()
        except RuntimeError as error:
            if not fault_of(error).process_can_go_on:
                raise
            short = isinstance(error, torch.OutOfMemoryError)
            failed |= {other.kind for other in wanted} if short else {each.kind}
            missing.append(each)
            logger.warning(
                "no CUDA graph for %d %s (%s): sizes without one are launched kernel by kernel",
                each.rows,
                each.kind,
                error,
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
    """The bound that is reached; empty where none is."""
    if seconds >= bounds.seconds:
        return f"the bound of {bounds.seconds:g} s (--graph-seconds)"
    return f"the bound of {bounds.nbytes / 2**20:.0f} MiB (--graph-memory)" if nbytes >= bounds.nbytes else ""


def _without(missing: Sequence[CaptureRequest], reached: str) -> str:
    """What has no graph, in words."""
    if not missing:
        return ""
    kinds = dict.fromkeys(each.kind for each in missing)
    rows = {kind: sorted({each.rows for each in missing if each.kind == kind}) for kind in kinds}
    listed = "; ".join(f"{', '.join(map(str, rows[kind]))} {kind}" for kind in kinds)
    return f"{f'; {reached} is reached' if reached else ''}; launched kernel by kernel: {listed}"


def batch_buckets(most: int) -> list[int]:
    """1, 2, 4, 8, then in steps of 8, and of a quarter of the power of 2 below from 64 on; the last is `most`.

    A batch is so padded by at most 8 rows, or by a quarter of itself. Raises ValueError for less than one sequence.
    """
    if most < 1:
        raise ValueError(f"batches of up to {most} sequences; there is at least one")
    sizes, size = [1, 2, 4], 8
    while size < most:
        sizes.append(size)
        size += max(8, (1 << (size.bit_length() - 1)) // 4)
    return [*(s for s in sizes if s < most), most]


def row_buckets(most: int) -> list[int]:
    """Powers of two from 16 on, and those and their halves: 16, 24, 32, 48, 64; the last is `most`.

    A step of more than 16 rows is so padded by at most a half of itself, by a quarter on average. Raises ValueError for
    less than one row.
    """
    if most < 1:
        raise ValueError(f"steps of up to {most} rows; there is at least one")
    sizes = [size for k in range(4, most.bit_length()) for size in (1 << k, 3 << (k - 1))]
    return [*(s for s in sizes if s < most), most]


def bucket_of(count: int, buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds `count` sequences, or rows; None where none does."""
    index = bisect_left(buckets, count)
    return buckets[index] if index < len(buckets) else None


class Graphs(Protocol):
    """Graphs of one kind of work. They are captured from outside, once."""

    def wanted(self) -> Sequence[CaptureRequest]:
        """All that there may be."""


class StepGraphs(Graphs, Protocol):
    """Graphs of some of the steps that there may be."""

    def run(self, rows: StepRows) -> Tensor | None:
        """Hidden states `[T, hidden]` of a step, valid until the next call; None if there is no graph of it.

        It sends what is in the upload buffer with the rows.
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
"""Every step is launched kernel by kernel."""
