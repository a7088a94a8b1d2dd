"""A step's forward pass: as a CUDA graph if there is one, and on the next attention backend if one fails.

A pass may be computed again from its start, because it only changes the cache, and there only the cells of its own
rows: each layer writes them before any row attends, so a broken pass leaves nothing that is read. The recurrent states
are replaced when the pass is complete. The runner copies blocks before and samples tokens after the pass, once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from torch import Tensor

from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_runtime.execution.attention.base import (
    OUT_OF_MEMORY,
    AttentionBackend,
    AttentionError,
    create_backend,
    prepare_step,
)
from plimsoll_runtime.execution.attention.split import exclude_failed
from plimsoll_runtime.execution.device.faults import fault_of
from plimsoll_runtime.execution.graphs.capture import (
    NO_GRAPHS,
    Capture,
    CaptureBounds,
    Graphs,
    OnProgress,
    StepGraphs,
    capture_all,
    no_progress,
)
from plimsoll_runtime.execution.inputs.batch_state import StepInputs
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.parts import GraphCounts, StepParts

logger = logging.getLogger(__name__)

_Inputs = TypeVar("_Inputs")


class NoBackendError(Exception):
    """No attention backend is left that could compute the step; the cause is the error of the first one, `backend`."""

    def __init__(self, message: str, backend: str) -> None:
        super().__init__(message)
        self.backend = backend


class ForwardPass:
    """Passes of one decoder over one cache, launched kernel by kernel, with the attention `backend` in use.

    `fallbacks` counts the backends that failed and were replaced.
    """

    def __init__(self, parts: StepParts, backends: Iterable[type[AttentionBackend]]) -> None:
        """`backends`: the one to use, then its replacements in order.

        Raises NoBackendError if none of them can be created.
        """
        self.parts = parts
        self._waiting = deque(backends)
        self.fallbacks = 0
        try:
            self._use_next()
        except AttentionError as failure:
            self._fall_back(failure, failure)

    @property
    def backends(self) -> list[type[AttentionBackend]]:
        """The backend in use, then those that have not been tried."""
        return [type(self.backend), *self._waiting]

    @property
    def backend_name(self) -> str:
        """The attention backend in use."""
        return self.backend.name

    @property
    def replays(self) -> GraphCounts | None:
        """None, because no pass is replayed."""
        return None

    def run(self, inputs: StepInputs) -> Tensor:
        """Return hidden states `[T, hidden]`, valid until the next call.

        Raises NoBackendError, with the step's first failure, if every backend has failed.
        """
        return self._on_some_backend(self._compute, inputs)

    def _on_some_backend(self, compute: Callable[[_Inputs], Tensor], inputs: _Inputs) -> Tensor:
        """Compute a step with the backend in use; if that fails, start again with the next one."""
        first: AttentionError | None = None
        while True:
            try:
                return compute(inputs)
            except AttentionError as failure:
                first = first or failure
                self._fall_back(failure, first)

    def _compute(self, inputs: StepInputs) -> Tensor:
        """Compute a step kernel by kernel."""
        parts, attention = self.parts, prepare_step(self.backend, inputs.batch)
        parts.timeline.lap(StepPhase.INPUTS)
        return parts.states.compute(parts.decoder, inputs, attention)

    def _use_next(self) -> None:
        self.backend = create_backend(self._waiting.popleft(), self.parts.cache)

    def _fall_back(self, failure: AttentionError, first: AttentionError) -> None:
        """Use the next backend that can be created and does not contain a failed one.

        Raises NoBackendError with the first failure if none is left.
        """
        while left := exclude_failed(failure.backend, self._waiting):
            self._waiting = deque(left)
            name = left[0].name
            logger.warning(
                "%s; %s computes attention from here on (select it at the start with --attention-backend %s)",
                failure,
                name,
                name,
                exc_info=failure,
            )
            self.fallbacks += 1
            try:
                self._use_next()
            except AttentionError as error:
                failure = error
            else:
                return
        raise NoBackendError(
            f"{first}; no other backend can replace it: choose another --attention-backend", first.backend
        ) from first.__cause__


GraphsOf = Callable[[AttentionBackend], StepGraphs]
"""Makes the graphs of steps on a backend, which are not captured yet."""


class GraphForwardPass(ForwardPass):
    """A forward pass that replays a graph if there is one for the step."""

    def __init__(self, parts: StepParts, backends: Iterable[type[AttentionBackend]], graphs_of: GraphsOf) -> None:
        """Raises NoBackendError if no backend can be created."""
        self._graphs_of = graphs_of
        self._graphs: StepGraphs = NO_GRAPHS
        super().__init__(parts, backends)

    @property
    def replays(self) -> GraphCounts | None:
        """The passes that were replayed, and those that had no graph."""
        return self.parts.graph_counts

    def run_rows(self, rows: StepRows) -> Tensor:
        """Return hidden states `[T, hidden]` of rows that are not on the device yet, valid until the next call.

        Raises ValueError if a block table is too short, and NoBackendError as `run` does.
        """
        rows.check()
        return self._on_some_backend(self._replay_or_compute, rows)

    def capture_graphs(
        self, capture: Capture, bounds: CaptureBounds, progress: OnProgress = no_progress, beside: Graphs = NO_GRAPHS
    ) -> None:
        """Capture the graphs of steps and those of `beside` (other work), as many as the bounds allow. Call it once.

        Nothing is captured later: the steps of a backend that replaces a failed one are launched kernel by kernel.
        """
        self._graphs_of = lambda backend: NO_GRAPHS
        if not (requests := [*self._graphs.wanted(), *beside.wanted()]):
            return
        try:
            capture_all(requests, capture, bounds, progress)
        except Exception as error:  # noqa: BLE001 - after any error, which is logged, steps are launched without graphs
            self._give_up_graphs(error)

    def _replay_or_compute(self, rows: StepRows) -> Tensor:
        """Replay the step's graph or compute it kernel by kernel. If a graph fails, all graphs are dropped."""
        hidden: Tensor | None = None
        try:
            hidden = self._graphs.run(rows)
        except (*OUT_OF_MEMORY, AttentionError):
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up_graphs(error)
        if hidden is None:
            self.parts.graph_counts.launched += 1
            return self._compute(rows.inputs())
        self.parts.graph_counts.replayed += 1
        return hidden

    def _give_up_graphs(self, error: Exception) -> None:
        if not fault_of(error).process_can_go_on:
            raise error
        self._graphs = NO_GRAPHS
        logger.warning(
            "a CUDA graph failed with %s: %s; steps are launched kernel by kernel from here on",
            type(error).__name__,
            error,
            exc_info=error,
        )

    def _use_next(self) -> None:
        # The graphs of the failed backend hold memory that the next one may need.
        self._graphs = NO_GRAPHS
        super()._use_next()
        self._graphs = self._graphs_of(self.backend)
