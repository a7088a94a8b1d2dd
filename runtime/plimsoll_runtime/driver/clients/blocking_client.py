"""The `LLM` class's side of an engine process: blocking, with the core's own interface."""

from __future__ import annotations

import time
from collections.abc import Iterable

import zmq

from plimsoll_runtime.driver.clients.requests import as_command
from plimsoll_runtime.driver.process.child import LAST_WORDS_SECONDS, EngineChild, failure
from plimsoll_runtime.driver.process.handshake import BUILD
from plimsoll_runtime.driver.process.heartbeat import CHECK_SECONDS
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.limits import check_request
from plimsoll_runtime.engine.protocol.messages import (
    AbortRequests,
    AddRequest,
    EngineFailed,
    EngineInfo,
    EngineStats,
    Event,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
    Vocabulary,
)
from plimsoll_runtime.errors import UsageError

STOP_SECONDS = 5.0


class BlockingEngine:
    """An engine in a child process that is driven like a core of one's own: add, step, abort.

    Only `step` may be broken off, as Ctrl-C does: see `interrupts`.
    """

    def __init__(self, config: EngineConfig, *, factory: str = BUILD) -> None:
        """Start and wait until the model is loaded. Raises what it could not start for."""
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
        """Of the engine's process."""
        return self._child.pid

    @property
    def has_work(self) -> bool:
        """Whether a request is under way."""
        return bool(self._under_way)

    def add(self, request: AddRequest) -> None:
        """Send a request. Raises UsageError when it could never be served."""
        check_request(request, self.info)
        if request.request_id in self._under_way:
            raise UsageError(f"request id {request.request_id!r} is in use; every request needs an id of its own")
        self._under_way.add(request.request_id)
        self._child.send(as_command(request))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests; unknown or finished ids are ignored."""
        known = self._under_way.intersection(request_ids)
        if known:
            self._under_way -= known
            self._child.send(AbortRequests(sorted(known)))

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        self._child.send(ResetPrefixCache())

    def use(self, vocabulary: Vocabulary) -> None:
        """Let the engine compile constraints, before the first request that has one; told again, it does nothing."""
        if not self._told:
            self._child.send(vocabulary)
            self._told = True

    def step(self) -> StepOutputs:
        """Wait for the outputs of the next step that has any; empty without work.

        Raises EngineDeadError when the process ends.
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
        """End the process; the object is of no use afterwards."""
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
        """Wait for an event. Raises what the engine failed with, or EngineDeadError when it ended without a word.

        And EngineDeadError when it has hung; then it is killed.
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
        if isinstance(event, EngineFailed):
            raise failure(event)
        return event
