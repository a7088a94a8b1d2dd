"""A step's forward pass, with what surrounds it: block copies, CUDA graphs, other backends after a failure, handling of
memory shortage.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.engine.step_timing import StepPhase, Timeline
from plimsoll_runtime.execution.attention.base import (
    OUT_OF_MEMORY,
    AttentionBackend,
    AttentionBatch,
    AttentionError,
    create_backend,
    prepare_step,
)
from plimsoll_runtime.execution.attention.split import exclude_failed
from plimsoll_runtime.execution.device.faults import fault_of, is_device_memory
from plimsoll_runtime.execution.graphs.capture import CaptureBounds, Clock, Graphs, OnProgress, StepGraphs, capture_all
from plimsoll_runtime.execution.inputs.batch_state import StepInputs
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks
from plimsoll_runtime.execution.kv.states import OwnCaches, StateCache
from plimsoll_runtime.models.decoder import Decoder

logger = logging.getLogger(__name__)


class NoBackendError(Exception):
    """No attention backend is left that could compute the step; the cause is the first one's error."""


GraphsOf = Callable[[AttentionBackend], StepGraphs | None]
"""Makes what will have the graphs that run over a backend, where it may have some."""


class ForwardPass:
    """One decoder over one cache. `fallbacks` counts the backends that failed and were replaced.

    A pass may be computed again from its start, since it changes nothing but its own rows' cells of the cache: each
    layer writes them before any row attends, so what a failed pass left there is never read. Recurrent states are
    stored when the pass is over. Block copies and sampling are the runner's, before and after, and are done once.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KvCache,
        backends: Iterable[type[AttentionBackend]],
        graphs_of: GraphsOf | None = None,
        timeline: Timeline | None = None,
        states: StateCache | OwnCaches | None = None,
    ) -> None:
        """`backends`: the one to use, then those that take its place one after the other where one fails.

        Raises NoBackendError when none of them can be made.
        """
        self._decoder = decoder
        self._cache = cache
        self._waiting = deque(backends)
        self._graphs_of = graphs_of
        self._timeline = timeline
        self._states = states
        self._graphs: StepGraphs | None = None
        self.fallbacks = 0
        try:
            self._use_next()
        except AttentionError as failure:
            self._fall_back(failure, failure)

    @property
    def backend(self) -> AttentionBackend:
        """The one in use."""
        return self._backend

    @property
    def backends(self) -> list[type[AttentionBackend]]:
        """The one in use, then those that have still to be tried."""
        return [type(self._backend), *self._waiting]

    def __call__(
        self, token_ids: Tensor, positions: Tensor, batch: AttentionBatch, slots: Sequence[int] = ()
    ) -> Tensor:
        """Hidden states `[T, hidden]`, valid until the next call; token_ids and positions int64 `[T]` on the device.

        `slots`: of each sequence the row of the states that recurrent layers keep of it.

        Raises NoBackendError, with the step's first failure, where every backend has failed.
        """
        return self._on_some_backend(StepInputs(token_ids, positions, batch), slots)

    def of_rows(self, rows: StepRows) -> Tensor:
        """The same of rows that are still to be sent to the device, from a graph where there is one of such a step."""
        return self._on_some_backend(rows, ())

    def capture_graphs(
        self,
        bounds: CaptureBounds,
        told: OnProgress = lambda fraction: None,
        clock: Clock = time.monotonic,
        beside: Graphs | None = None,
    ) -> None:
        """Capture all graphs that the bounds allow, before the first request, and those `beside` within the same ones.
        Later nothing is captured any more.

        So a backend that takes the place of one that fails in service has its steps launched kernel by kernel.
        """
        self._graphs_of = None
        made: list[Graphs] = [each for each in (self._graphs, beside) if each is not None]
        if not made:
            return
        try:
            capture_all([each for graphs in made for each in graphs.wanted()], made[0].capture, bounds, told, clock)
        except Exception as error:  # noqa: BLE001 - whatever it is, steps are launched without graphs; it is logged
            self._give_up_graphs(error)

    def step(self, plan: StepPlan, inputs: StepInputs | StepRows) -> Tensor:
        """A call for a plan's rows, before which sequences resume from snapshots, and behind which some are taken."""
        states = self._states
        if plan.resumes:
            assert isinstance(states, StateCache)
            states.resume(plan.resumes)
        if isinstance(inputs, StepRows):
            hidden = self.of_rows(inputs)
        else:
            hidden = self._on_some_backend(inputs, [s.slot for s in plan.sequences])
        if plan.snapshots:
            assert isinstance(states, StateCache)
            states.take_snapshots(plan.snapshots)
        return hidden

    def free(self, slots: Iterable[int]) -> None:
        """No sequence is in these slots any more."""
        if self._states is not None:
            self._states.free(slots)

    def _on_some_backend(self, inputs: StepInputs | StepRows, slots: Sequence[int]) -> Tensor:
        """On the backend in use, and where that fails on the next one, from the start."""
        first: AttentionError | None = None
        while True:
            try:
                if not isinstance(inputs, StepRows):
                    return self._computed(inputs, slots)
                hidden = self._replayed(inputs)
                return self._computed(inputs.inputs(), inputs.slots.tolist()) if hidden is None else hidden
            except AttentionError as failure:
                first = first or failure
                self._fall_back(failure, first)

    def _replayed(self, rows: StepRows) -> Tensor | None:
        """From a graph; None where the step is none for one. Graphs that fail are given up, and the step goes on."""
        if self._graphs is None:
            return None
        rows.check()
        try:
            return self._graphs.run(rows)
        except (*OUT_OF_MEMORY, AttentionError):
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up_graphs(error)
            return None

    def _give_up_graphs(self, error: Exception) -> None:
        if not fault_of(error).process_can_go_on:
            raise error
        self._graphs = None
        logger.warning(
            "a CUDA graph failed with %s: %s; from now on steps are launched kernel by kernel",
            type(error).__name__,
            error,
            exc_info=error,
        )

    def _computed(self, inputs: StepInputs, slots: Sequence[int]) -> Tensor:
        """Kernel by kernel."""
        token_ids, positions, attention = inputs.token_ids, inputs.positions, prepare_step(self._backend, inputs.batch)
        if self._timeline is not None:
            self._timeline.lap(StepPhase.INPUTS)
        if self._states is None:
            return self._decoder(token_ids, positions, attention)
        states = self._states.begin(slots, inputs.batch.query_lens, positions)
        hidden = self._decoder(token_ids, positions, attention, states)
        states.commit()
        return hidden

    def _use_next(self) -> None:
        backend = create_backend(self._waiting.popleft(), self._cache)
        self._backend, self._graphs = backend, None if self._graphs_of is None else self._graphs_of(backend)

    def _fall_back(self, failure: AttentionError, first: AttentionError) -> None:
        """Use the next backend that can be made, and has no part in which one failed.

        Raises NoBackendError with the first failure where none is left.
        """
        while left := exclude_failed(failure.backend, self._waiting):
            self._waiting = deque(left)
            name = left[0].name
            logger.warning(
                "%s; from now on %s computes attention (--attention-backend %s begins with that one)",
                failure,
                name,
                name,
                exc_info=failure,
            )
            self.fallbacks += 1
            # They are the old one's, and hold memory that the next one may need.
            self._graphs = None
            try:
                self._use_next()
            except AttentionError as error:
                failure = error
            else:
                return
        raise NoBackendError(
            f"{first}; no other backend may take its place: give another --attention-backend"
        ) from first.__cause__


_Result = TypeVar("_Result")


class OutOfMemoryHandler:
    """Those of a runner. The log has the first, the second, the fourth and so on: there may be one every few steps."""

    def __init__(self) -> None:
        self.count = 0

    def watch(
        self,
        plan: StepPlan,
        compute: Callable[[StepPlan], _Result],
        break_off: Callable[[], None] = lambda: None,
    ) -> _Result:
        """What computing a plan gives.

        Raises StepMemoryError where the device has no memory for it, after `break_off`; any other error as it is.
        """
        try:
            return compute(plan)
        except Exception as error:
            if not is_device_memory(error):
                raise
            told = str(error)
        # The error is gone, and with it the frames that held what the step had allocated.
        break_off()
        raise self._error(plan, told)

    def _error(self, plan: StepPlan, told: str) -> StepMemoryError:
        """The error to raise; `told`: torch's text.

        What torch's allocator keeps for later goes back to the device, where other processes and libraries find it too.
        """
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        self.count += 1
        what = told.partition("\n")[0]
        if not self.count & (self.count - 1):
            logger.warning(
                "a step of %d tokens of %d sequences found no memory on the device (%s), and is planned anew, smaller; "
                "%d such so far",
                plan.num_tokens,
                len(plan.sequences),
                what,
                self.count,
            )
        return StepMemoryError(what)


class BlockCopies:
    """Of one cache, and of the host memory beside it if there is some."""

    def __init__(self, cache: KvCache, host: HostBlocks | None = None) -> None:
        self._cache = cache
        self._host = host
        self._copies = None if host is None else host.copies

    def begin(self, plan: StepPlan) -> None:
        """Move what the plan says, in the order that `StepPlan` gives.

        A GPU is only told to. What it copies to and from host memory is over when `HostBlocks.copies` says so.
        """
        if self._copies is not None:
            self._copies.begin_step()
        if self._host is not None and (plan.spills or plan.restores):
            self._host.move(plan.spills, plan.restores, plan.idle_steps)
        if plan.num_blocks is not None:
            self._cache.resize(plan.num_blocks, plan.moves)
        if plan.block_copies:
            self._cache.copy_blocks(plan.block_copies)
