"""Captures within bounds: their order, and the log about the rest."""

from __future__ import annotations

import logging

import pytest
import torch
from kernel_support.recorder import Recorder

from plimsoll_runtime.execution.graphs.capture import CaptureBounds, CaptureRequest, capture_all, in_order

MIB = 2**20
WIDE = CaptureBounds(60.0, 2**30)


class Sizes:
    """Requested graphs: each takes a second of the clock, and `size` bytes of the device."""

    def __init__(
        self, decodes: list[int], mixed: list[int], size: int = MIB, fails: dict[int, Exception] | None = None
    ):
        self.capture = Recorder(size=size)
        self.now = 100.0
        self.added: list[int] = []
        self._fails = fails or {}
        self.wanted = [self._wanted("decodes", n) for n in decodes] + [self._wanted("rows of chunks", n) for n in mixed]

    def _wanted(self, kind: str, rows: int) -> CaptureRequest:
        def add() -> None:
            self.now += 1.0
            if rows in self._fails:
                raise self._fails[rows]
            self.capture(lambda: torch.zeros(1))
            self.added.append(rows)

        return CaptureRequest(kind, rows, add)

    def run(self, bounds: CaptureBounds, caplog: pytest.LogCaptureFixture) -> list[str]:
        """Capture within bounds and return the log, the last line first."""
        self.heard: list[float] = []
        with caplog.at_level(logging.INFO):
            capture_all(self.wanted, self.capture, bounds, self.heard.append, lambda: self.now)
        return [record.getMessage() for record in reversed(caplog.records)]


def test_the_largest_first_then_from_the_smallest_on() -> None:
    sizes = Sizes([1, 2, 8, 4], [16, 3])
    assert [each.rows for each in in_order(sizes.wanted)] == [16, 1, 2, 3, 4, 8]
    assert in_order([]) == []


def test_all_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    sizes = Sizes([1, 2, 4], [8])
    assert sizes.run(WIDE, caplog) == ["captured 4 of 4 graphs in 4.0 s and 4 MiB"]
    assert sizes.heard == [0.25, 0.5, 0.75, 1.0]


def test_time_runs_out(caplog: pytest.LogCaptureFixture) -> None:
    sizes = Sizes([1, 2, 2, 4], [8])
    assert sizes.run(CaptureBounds(2.5, 2**30), caplog) == [
        "captured 3 of 5 graphs in 3.0 s and 3 MiB; the bound of 2.5 s (--graph-seconds) is reached; "
        "launched kernel by kernel: 2, 4 decodes"
    ]
    assert sizes.added == [8, 1, 2]


def test_memory_runs_out(caplog: pytest.LogCaptureFixture) -> None:
    sizes = Sizes([1, 2, 4], [3, 8], size=3 * MIB)
    assert sizes.run(CaptureBounds(60.0, 6 * MIB), caplog) == [
        "captured 2 of 5 graphs in 2.0 s and 6 MiB; the bound of 6 MiB (--graph-memory) is reached; "
        "launched kernel by kernel: 2, 4 decodes; 3 rows of chunks"
    ]
    assert sizes.added == [8, 1]


def test_a_kind_that_fails_costs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The other kinds are captured."""
    sizes = Sizes([1, 2, 4], [3, 8], fails={1: RuntimeError("not permitted while capturing")})
    assert sizes.run(WIDE, caplog) == [
        "captured 2 of 5 graphs in 3.0 s and 2 MiB; launched kernel by kernel: 1, 2, 4 decodes",
        "no CUDA graph for 1 decodes (not permitted while capturing): sizes without one are launched kernel by kernel",
    ]
    assert sizes.added == [8, 3]


def test_where_memory_is_short_nothing_more_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    sizes = Sizes([1, 2, 4], [3, 8], fails={2: torch.OutOfMemoryError("no memory for a graph")})
    last, first = sizes.run(WIDE, caplog)
    assert first.startswith("no CUDA graph for 2 decodes (no memory for a graph): ")
    assert last.endswith("launched kernel by kernel: 2, 4 decodes; 3 rows of chunks")
    assert sizes.added == [8, 1]


def test_a_device_that_has_faulted_is_captured_on_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Every later call would fail as well, and the process must end with the first error."""
    fault = RuntimeError("CUDA error: an illegal memory access was encountered")
    sizes = Sizes([1, 2, 4], [8], fails={1: fault})
    with pytest.raises(RuntimeError) as raised:
        sizes.run(WIDE, caplog)
    assert raised.value is fault
    assert sizes.added == [8]
    assert not caplog.records
