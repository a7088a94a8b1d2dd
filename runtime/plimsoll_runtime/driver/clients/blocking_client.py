"""The blocking client of an engine process, used by the `LLM` class; it has the methods of the engine core."""

from __future__ import annotations

import time
from collections.abc import Iterable

import zmq

from plimsoll_runtime.driver.clients.requests import as_command
from plimsoll_runtime.driver.process.child import LAST_WORDS_SECONDS, EngineChild
from plimsoll_runtime.driver.process.exit_errors import error_of
from plimsoll_runtime.driver.process.handshake import BUILD
from plimsoll_runtime.driver.process.heartbeat import CHECK_SECONDS
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.limits import check_request
from plimsoll_runtime.engine.protocol.messages import (
    AbortRequests,
    AddRequest,
    EngineInfo,
    EngineStats,
    Event,
    ProcessFailed,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
    Vocabulary,
)
from plimsoll_runtime.errors import UsageError

STOP_SECONDS = 5.0


class BlockingEngine:
    """An engine in a child process with the methods of an engine core: add, step, abort.

    Only `step` may be interrupted by an exception such as Ctrl-C; see `interrupts`.
    """

    def __init__(self, config: EngineConfig, *, factory: str = BUILD) -> None:
        """Start the process and wait until the model is loaded. Raises the error that the start failed with."""
        self._child = EngineChild(config, factory)
        self._poller = zmq.Poller()
        self._poller.register(self._child.events, zmq.POLLIN)
        self._poller.register(self._child.ended_fd, zmq.POLLIN)
        self._under_way: set[str] = set()
        self.stats = EngineStats()
        self._told = False
        try:
            self.info = self._wait_ready()
        except BaseException:
            self._child.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._child.pid

    @property
    def has_work(self) -> bool:
        """Whether requests are running."""
        return bool(self._under_way)

    def add(self, request: AddRequest) -> None:
        """Send a request. Raises UsageError if it can never be served."""
        check_request(request, self.info)
        if request.request_id in self._under_way:
            raise UsageError(f"request id {request.request_id!r} is in use; give every request a unique id")
        self._under_way.add(request.request_id)
        self._child.send(as_command(request))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Cancel requests; unknown or finished ids are ignored."""
        known = self._under_way.intersection(request_ids)
        if known:
            self._under_way -= known
            self._child.send(AbortRequests(sorted(known)))

    def reset_prefix_cache(self) -> None:
        """Remove every cached prefix."""
        self._child.send(ResetPrefixCache())

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary for constraints, before the first request with one. Further calls do nothing."""
        if not self._told:
            self._child.send(vocabulary)
            self._told = True

    def step(self) -> StepOutputs:
        """Wait for the next step with outputs, and return them; empty without work.

        Raises EngineDeadError if the process ends.
        """
        while self._under_way:
            event = self._next_event()
            if not isinstance(event, StepOutputs):
                continue
            self.stats = event.stats
            outputs = [o for o in event.outputs if o.request_id in self._under_way]
            self._under_way.difference_update(o.request_id for o in outputs if o.finish_reason is not None)
            if outputs:
                return StepOutputs(outputs, event.stats)
        return StepOutputs([], self.stats)

    def stop(self) -> None:
        """End the process. The object cannot be used afterwards."""
        self._under_way.clear()
        self._child.send(Shutdown())
        self._child.wait(STOP_SECONDS)
        self._child.close()

    def _wait_ready(self) -> EngineInfo:
        while True:
            event = self._next_event()
            if isinstance(event, EngineInfo):
                return event

    def _next_event(self) -> Event:
        """Wait for an event and return it.

        Raises the engine's error if it failed, or EngineDeadError if the process ended or hung (then it is killed).
        """
        deadline: float | None = None
        while (event := self._child.receive()) is None:
            if deadline is None:
                ready = dict(self._poller.poll(int(1000 * CHECK_SECONDS)))
                if (error := self._child.check()) is not None:
                    raise error
                if self._child.ended_fd in ready:
                    deadline = time.monotonic() + (LAST_WORDS_SECONDS if self._child.owes_a_reason else 0.0)
            elif not self._child.events.poll(max(0, int(1000 * (deadline - time.monotonic())))):
                raise self._child.death()
        if isinstance(event, ProcessFailed):
            raise error_of(event)
        return event
