"""The asyncio client of an engine process, used by servers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable

from plimsoll_runtime.driver.clients.requests import Mailbox, PromptSender
from plimsoll_runtime.driver.process.child import KILL_SECONDS, LAST_WORDS_SECONDS, EngineChild
from plimsoll_runtime.driver.process.exit_errors import error_of
from plimsoll_runtime.driver.process.handshake import BUILD, Grant
from plimsoll_runtime.driver.process.heartbeat import CHECK_SECONDS
from plimsoll_runtime.driver.process.standby import StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.limits import check_request
from plimsoll_runtime.engine.protocol.messages import (
    AbortRequests,
    AddRequest,
    EngineInfo,
    EngineStats,
    Event,
    LoadProgress,
    ProcessFailed,
    RequestOutput,
    Resize,
    Resized,
    Shutdown,
    StepOutputs,
    TracedStep,
    Vocabulary,
)
from plimsoll_runtime.errors import EngineDeadError, PlimsollError, UsageError
from plimsoll_runtime.utils.progress import Progress
from plimsoll_runtime.weights.image import Image

logger = logging.getLogger(__name__)

OnTraced = Callable[[TracedStep, EngineInfo], None]
"""Called with each step that was recorded for traces, before the requests get its outputs."""

STOP_SECONDS = 5.0
"""Time for the process to end by itself."""
EVENTS_AT_ONCE = 64
"""Events handled before the event loop's other work runs."""

DEADLINE_SECONDS = 1.0
"""Time after a request's deadline after which the client ends it itself, if the engine has not."""


class AsyncEngine:
    """An engine in a child process, for the event loop that started it.

    When the process ends, for whatever reason, every generator raises and `wait_dead` returns. A hung process is killed
    (see `heartbeat.Watch`).
    """

    def __init__(self, child: EngineChild, on_progress: Progress | None, on_traced: OnTraced | None = None) -> None:
        self._child = child
        self._on_traced = on_traced
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        self._dead = asyncio.Event()
        self._gone = asyncio.Event()
        self._error: PlimsollError | None = None
        self._mailboxes: dict[str, Mailbox] = {}
        self._requests = PromptSender(child.send)
        self._stats = EngineStats()
        self._told = False
        self._keys = itertools.count()
        self._resizes: dict[int, asyncio.Future[int]] = {}
        self._events_fd = child.events_fd
        self._rest: asyncio.Handle | None = None
        self._checking: asyncio.Handle | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._loop.add_reader(self._events_fd, self._read_events)
        self._loop.add_reader(child.ended_fd, self._on_end)
        self._read_events()

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        on_progress: Progress | None = None,
        *,
        factory: str = BUILD,
        standby: StandbyProcess | None = None,
        image: Image | None = None,
        grant: Grant | None = None,
        on_traced: OnTraced | None = None,
    ) -> AsyncEngine:
        """Start a process and wait until its model is loaded. Cancelling ends the process.

        `factory` ("module:function") builds the engine in the process. A `standby` becomes that process, and is used up
        even if the start fails. An empty `image` is filled by the load; from a filled one the model wakes (ModelError
        if it does not fit). The caller keeps the image. With a `grant` the engine takes exactly that memory.

        Raises the error that the start failed with: SourceError, ModelError, MemoryLimitError, UsageError or
        EngineDeadError; StandbyDeadError if the process ended before it read its order.
        """
        engine = cls(EngineChild(config, factory, standby=standby, image=image, grant=grant), on_progress, on_traced)
        try:
            await asyncio.shield(engine._ready)
        except BaseException:
            await engine.stop()
            raise
        return engine

    @property
    def info(self) -> EngineInfo:
        """Sizes and names of the loaded model."""
        return self._ready.result()

    @property
    def stats(self) -> EngineStats:
        """Statistics of the last step."""
        return self._stats

    @property
    def alive(self) -> bool:
        """Whether requests can be served."""
        return self._error is None

    @property
    def failure(self) -> PlimsollError | None:
        """The error after which no requests can be served; None while they can."""
        return self._error

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._child.pid

    async def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of one request as they arrive; for a slow reader several are joined into one.

        Closing the generator early aborts the request. The engine reports a passed deadline; if it does not, the
        request ends here a little later. Raises UsageError for a request that cannot be served, EngineDeadError if the
        engine dies.
        """
        if self._error is not None:
            raise self._error
        check_request(request, self.info)
        if request.request_id in self._mailboxes:
            raise UsageError(f"request id {request.request_id!r} is in use; give every request a unique id")
        mailbox = self._mailboxes[request.request_id] = Mailbox()
        self._requests.add(request)
        giving_up = self._give_up_in_time(request, mailbox)
        finished = False
        try:
            while not finished:
                output = await mailbox.take()
                if giving_up is not None:
                    giving_up.cancel()
                finished = output.finish_reason is not None
                yield output
        finally:
            if giving_up is not None:
                giving_up.cancel()
            del self._mailboxes[request.request_id]
            if not finished and self.alive:
                self._child.send(AbortRequests([request.request_id]))
            self._requests.done(request)

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary for constraints, before the first request with one. Further calls do nothing."""
        if not self._told:
            self._child.send(vocabulary)
            self._told = True

    @property
    def kv_bytes(self) -> int:
        """Current size of the KV cache; while it shrinks, the size that the planned steps lead to."""
        blocks = self._stats.blocks_total
        return (blocks + 1) * (self.info.kv_bytes // self.info.num_blocks) if blocks else self.info.kv_bytes

    async def resize(self, kv_bytes: int) -> int:
        """Resize the KV cache to whole blocks of at most `kv_bytes`, without stopping; return its new size in bytes.

        Returns when surplus memory has been released. Blocks in use are moved. If more blocks are in use than should
        remain, the cache shrinks as far as possible (see `kv_bytes`), and by the rest as sequences end. Cancelling the
        wait does not cancel the change. A later change replaces it, and both calls return its result. Raises UsageError
        for a size beyond the grant's bounds or for a GPU's cache, EngineDeadError if the engine dies.
        """
        if self._error is not None:
            raise self._error
        key = next(self._keys)
        done: asyncio.Future[int] = self._loop.create_future()
        self._resizes[key] = done
        self._child.send(Resize(key, kv_bytes))
        try:
            return await done
        finally:
            del self._resizes[key]

    def drain(self) -> None:
        """Keep the members of a parallel group, also those that leave, until `stop`."""
        self._child.drain()

    async def wait_dead(self) -> None:
        """Return when the engine can serve no more requests."""
        await self._dead.wait()

    async def stop(self, why: PlimsollError | None = None) -> None:
        """End the process and wait for its end. Running requests raise `why`, or an EngineDeadError.

        May be called again, also concurrently: all calls wait for the same end. Cancelling kills the process.
        """
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop(why or EngineDeadError("the engine was stopped")))
        try:
            await asyncio.shield(self._stopping)
        except asyncio.CancelledError:
            self._child.kill()
            raise

    async def _stop(self, why: PlimsollError) -> None:
        loaded = self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None
        self._lose(why)
        self._child.send(Shutdown())
        patience = KILL_SECONDS
        try:
            await asyncio.wait_for(self._gone.wait(), STOP_SECONDS if loaded else 0)
        except TimeoutError:
            self._child.kill()
            try:
                await asyncio.wait_for(self._gone.wait(), KILL_SECONDS)
            except TimeoutError:
                patience = 0.0  # the wait above has already used the time
        finally:
            for descriptor in (self._events_fd, self._child.ended_fd):
                self._loop.remove_reader(descriptor)
            for handle in (self._rest, self._checking):
                if handle is not None:
                    handle.cancel()
            self._child.close(patience)

    def _read_events(self) -> None:
        """Handle all events. ZeroMQ's descriptor is edge-triggered: it must be read until nothing is left."""
        if self._rest is not None:
            self._rest.cancel()
        for _ in range(EVENTS_AT_ONCE):
            event = self._child.receive()
            if event is None:
                return
            self._handle(event)
        self._rest = self._loop.call_soon(self._read_events)

    def _handle(self, event: Event) -> None:
        if isinstance(event, StepOutputs):
            self._stats = event.stats
            if event.traced is not None:
                self._trace(event.traced)
            for output in event.outputs:
                if (mailbox := self._mailboxes.get(output.request_id)) is not None:
                    mailbox.put(output)
        elif isinstance(event, Resized):
            self._resized(event)
        elif isinstance(event, LoadProgress):
            if self._on_progress is not None:
                self._on_progress(event.stage, event.fraction)
        elif isinstance(event, EngineInfo):
            self._ready.set_result(event)
            self._check()
        elif isinstance(event, ProcessFailed):
            self._lose(error_of(event))

    def _trace(self, step: TracedStep) -> None:
        """Pass on a recorded step. An error in that must not end the stream of events."""
        if self._on_traced is None:
            return
        try:
            self._on_traced(step, self.info)
        except Exception:
            logger.exception("a recorded step could not be traced")

    def _resized(self, event: Resized) -> None:
        waiting = self._resizes.get(event.key)
        if waiting is None or waiting.done():
            return
        if event.error is None:
            waiting.set_result(event.kv_bytes)
        else:
            waiting.set_exception(UsageError(event.error))

    def _check(self) -> None:
        """Kill a hung engine, or check again later."""
        self._checking = None
        if not self.alive:
            return
        if (error := self._child.check()) is not None:
            self._lose(error)
        else:
            self._checking = self._loop.call_later(CHECK_SECONDS, self._check)

    def _give_up_in_time(self, request: AddRequest, mailbox: Mailbox) -> asyncio.Handle | None:
        """Schedule the end of a request with a deadline, in case the engine does not end it."""
        deadline = request.context.params.deadline
        if deadline is None:
            return None

        def give_up() -> None:
            # This process may have been late itself, so events of the engine are handled first.
            self._read_events()
            if mailbox.is_empty and self.alive:
                error = f"the deadline of {deadline:g} s passed before the first token, and the engine does not respond"
                mailbox.put(RequestOutput(request.request_id, finish_reason="deadline", error=error))
                self._child.send(AbortRequests([request.request_id]))

        arrived = request.context.arrived_ns / 1e9 or self._loop.time()
        return self._loop.call_at(arrived + deadline + DEADLINE_SECONDS, give_up)

    def _on_end(self) -> None:
        """Handle the end of the process. After an exit code of a PlimsollError, its message is still on the way."""
        self._loop.remove_reader(self._child.ended_fd)
        self._gone.set()
        if self._child.owes_a_reason:
            self._loop.call_later(LAST_WORDS_SECONDS, self._lose_silently)
        else:
            self._lose_silently()

    def _lose_silently(self) -> None:
        self._lose(self._child.death())

    def _lose(self, error: PlimsollError) -> None:
        """Pass an error to all waiting calls. Only the first error counts."""
        if self._error is not None:
            return
        self._error = error
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()
        for mailbox in self._mailboxes.values():
            mailbox.fail(error)
        for waiting in self._resizes.values():
            if not waiting.done():
                waiting.set_exception(error)
        self._dead.set()
