"""CUDA graphs of the ranks of a group. Their sums are within the graphs, so all ranks have the same graphs.

Before each capture, rank 0 says whether the list continues, and any rank may end it for lack of memory. A graph that
one rank cannot capture is dropped by all. So in every step either all ranks replay a graph or none does: NCCL may
compute a captured sum in another way than one that is not captured.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

import msgspec
import torch
from torch import Tensor

from plimsoll_runtime.execution.attention.base import OUT_OF_MEMORY, AttentionBackend
from plimsoll_runtime.execution.device.faults import fault_of
from plimsoll_runtime.execution.forward import GraphForwardPass, GraphsOf
from plimsoll_runtime.execution.graphs.capture import (
    NO_GRAPHS,
    Capture,
    CaptureBounds,
    Captured,
    CaptureFailure,
    CaptureRequest,
    Clock,
    Graphs,
    OnProgress,
    attempted,
    capture_all,
    no_progress,
)
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.models.ops.reduce import Reduce
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.rank import Rank

logger = logging.getLogger(__name__)

NO_MEMORY = "the memory of the device"


def _is_recording() -> bool:
    return torch.cuda.is_current_stream_capturing()


class RankCapture:
    """Captures the work of a rank. Only the recorded run of the work calls sums, so one that fails before it leaves no
    other rank waiting.
    """

    def __init__(
        self, capture: Capture, collectives: CountedCollectives, is_recording: Callable[[], bool] = _is_recording
    ) -> None:
        """`is_recording`: whether the present run of the work is recorded."""
        self._capture = capture
        self._collectives = collectives
        self._is_recording = is_recording

    @property
    def used(self) -> int:
        return self._capture.used

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        collectives, sums = self._collectives, 0

        def run() -> Tensor:
            nonlocal sums
            before = collectives.sums
            with collectives.muted(not self._is_recording()):
                out = work()
            sums = collectives.sums - before
            return out

        captured = self._capture(run)

        def replay() -> None:
            before = collectives.sums
            if sums:
                collectives.replaying()
            captured.replay()
            # A rank that fails later in the step must know which sums it has made.
            collectives.summed(before + sums - collectives.sums)

        return Captured(captured.out, replay)


def merged(requests: Iterable[CaptureRequest]) -> list[CaptureRequest]:
    """Return one request for all graphs of a kind and number of rows.

    Ranks have different numbers of key heads, and so different numbers of graphs for a capture size. A size is replayed
    only if all of its graphs were captured.
    """
    rising = sorted(requests, key=lambda each: (each.kind, each.rows))
    return [
        _joined(kind, rows, list(same)) for (kind, rows), same in groupby(rising, lambda each: (each.kind, each.rows))
    ]


def _joined(kind: str, rows: int, same: Sequence[CaptureRequest]) -> CaptureRequest:
    def add() -> None:
        for each in same:
            each.add()

    def drop() -> None:
        for each in same:
            each.drop()

    return CaptureRequest(kind, rows, add, drop)


class RanksAgreement:
    """Decides about captures together with all other ranks, which call the same methods in the same order."""

    def __init__(self, rank: Rank, program: Program) -> None:
        self._rank = rank
        self._collectives = rank.collectives
        self._widths = dict.fromkeys(op.width for op in program.ops if isinstance(op, Reduce))

    def common(self, requests: Sequence[CaptureRequest]) -> list[CaptureRequest]:
        """Return the requests that all ranks have, in the order of rank 0."""
        own = {(each.kind, each.rows): each for each in requests}
        first, *others = [
            msgspec.msgpack.decode(each, type=list[tuple[str, int]])
            for each in self._rank.group.gathered(msgspec.msgpack.encode(list(own)))
        ]
        return [own[name] for name in first if all(name in other for other in others)]

    def bound(self, request: CaptureRequest, reached: str) -> str:
        rehearsal = self._rehearsal(request.rows)
        own = NO_MEMORY if rehearsal is None else reached
        if (first := self._first(CaptureFailure(own, short=False) if own else None)) is not None:
            return first.text
        # NCCL makes connections at the first sum of a size, for which it waits for all ranks. A capture must not wait.
        for part in rehearsal or ():
            self._collectives.add_up(part)
        return ""

    def captured(self, request: CaptureRequest) -> CaptureFailure | None:
        with self._collectives.muted():
            own = attempted(request, Exception)
        return self._first(own)

    def _rehearsal(self, rows: int) -> list[Tensor] | None:
        """Return a tensor for each size of the sums in a graph; None if there is too little memory."""
        try:
            return [torch.zeros(rows, width, device=self._collectives.device) for width in self._widths]
        except OUT_OF_MEMORY:
            return None

    def _first(self, own: CaptureFailure | None) -> CaptureFailure | None:
        """Return the failure of the first rank with one, with the rank's number; None if no rank has one."""
        found = self._rank.group.gathered(b"" if own is None else msgspec.msgpack.encode(tuple(own)))
        failures = [
            (number, *msgspec.msgpack.decode(each, type=tuple[str, bool])) for number, each in enumerate(found) if each
        ]
        if not failures:
            return None
        number, text, _ = failures[0]
        return CaptureFailure(f"{text} of rank {number}", any(short for _, _, short in failures))


class RankForwardPass(GraphForwardPass):
    """The forward pass of a rank with graphs.

    If a graph or the attention backend fails, the step fails, and with it the generation of ranks: the others have
    called sums that this rank could only repeat.
    """

    def __init__(
        self, parts: StepParts, backends: Iterable[type[AttentionBackend]], graphs_of: GraphsOf, rank: Rank
    ) -> None:
        """Raises NoBackendError if the backend cannot be created."""
        super().__init__(parts, backends, graphs_of)
        self._rank = rank

    def capture_graphs(
        self,
        capture: Capture,
        bounds: CaptureBounds,
        progress: OnProgress = no_progress,
        beside: Graphs = NO_GRAPHS,
        clock: Clock = time.monotonic,
    ) -> None:
        """Capture the graphs of steps, which all ranks have, and before them those of `beside`, which rank 0 has alone.

        Only the clock of rank 0 counts, and the memory of each rank.
        """
        began = clock()
        self._graphs_of = lambda backend: NO_GRAPHS
        if own := list(beside.wanted()):
            self._capture_own(own, capture, bounds, clock)
        left = max(0.0, bounds.seconds - (clock() - began)) if self._rank.number == 0 else math.inf
        program = self.parts.decoder.outline
        assert isinstance(program, Program)
        agreement = RanksAgreement(self._rank, program)
        if requests := agreement.common(merged(self._graphs.wanted())):
            capture_all(requests, capture, replace(bounds, seconds=left), progress, clock, agreement)
            self._rank.collectives.have_graphs()

    def _capture_own(
        self, requests: Sequence[CaptureRequest], capture: Capture, bounds: CaptureBounds, clock: Clock
    ) -> None:
        try:
            capture_all(requests, capture, bounds, no_progress, clock)
        except Exception as error:
            if not fault_of(error).process_can_go_on:
                raise
            logger.warning("a CUDA graph of sampling failed with %s: %s", type(error).__name__, error, exc_info=error)

    def _replay_or_compute(self, rows: StepRows) -> Tensor:
        """Replay the step's graph, if the ranks have one, or compute it kernel by kernel."""
        hidden = self._graphs.run(rows)
        if hidden is not None:
            return hidden
        self._rank.collectives.launching()
        return self._compute(rows.inputs())
