"""The server's side of an engine process, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

import msgspec
import zmq
import zmq.asyncio

from plimsoll_runtime.driver.spawn import Launch, died, failure, prepare
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.messages import (
    AbortRequests,
    AddRequest,
    Command,
    EngineFailed,
    EngineInfo,
    EngineStats,
    Event,
    LoadProgress,
    RequestOutput,
    Shutdown,
    StepOutputs,
)
from plimsoll_runtime.errors import EngineDeadError, PlimsollError

STOP_SECONDS = 5.0
LAST_WORDS_SECONDS = 0.2
"""How long what a dead process sent is still read: its reason is better than its exit code."""

Progress = Callable[[str, float], None]


class AsyncEngine:
    """An engine in a child process. When it dies, every generator raises and `wait_dead` returns.

    Each request has a queue of its own: a slow reader holds up nobody.
    """

    def __init__(
        self, launch: Launch, process: asyncio.subprocess.Process, socket: zmq.asyncio.Socket, on_progress: Progress
    ) -> None:
        self._launch = launch
        self._process = process
        self._socket = socket
        self._on_progress = on_progress
        self._encoder = msgspec.msgpack.Encoder()
        self._queues: dict[str, asyncio.Queue[RequestOutput | PlimsollError]] = {}
        self._info: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self._dead = asyncio.Event()
        self._error: PlimsollError | None = None
        self._stopping = False
        self.stats = EngineStats()
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]

    @classmethod
    async def start(
        cls, config: EngineConfig, on_progress: Progress | None = None, *, factory: str | None = None
    ) -> AsyncEngine:
        """Start a process, wait until its model is loaded.

        Raises what the engine could not start for: SourceError, ModelError, MemoryLimitError, UsageError, or
        EngineDeadError. Cancelling ends the process.
        """
        launch = prepare(config, factory)
        socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.bind(launch.address)
        process = await asyncio.create_subprocess_exec(*launch.command, env=launch.environment)
        engine = cls(launch, process, socket, on_progress or _ignore)
        try:
            await socket.send(msgspec.msgpack.encode(config))
            await asyncio.shield(engine._info)
        except BaseException:
            await engine.stop()
            raise
        return engine

    @property
    def info(self) -> EngineInfo:
        """Sizes and names of what was loaded."""
        return self._info.result()

    @property
    def alive(self) -> bool:
        """Whether requests can be served."""
        return self._error is None and not self._stopping

    @property
    def failure(self) -> PlimsollError | None:
        """Why it is not alive, once it has died or failed."""
        return self._error

    async def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of one request. Closing early aborts it. Raises EngineDeadError when the engine dies."""
        if self._error is not None:
            raise self._error
        queue: asyncio.Queue[RequestOutput | PlimsollError] = asyncio.Queue()
        self._queues[request.request_id] = queue
        finished = False
        try:
            await self._send(request)
            while not finished:
                item = await queue.get()
                if isinstance(item, PlimsollError):
                    raise item
                finished = item.finish_reason is not None
                yield item
        finally:
            self._queues.pop(request.request_id, None)
            if not finished and self._error is None:
                self._send_soon(AbortRequests([request.request_id]))

    async def wait_dead(self) -> None:
        """Return once the engine has ended, whoever ended it."""
        await self._dead.wait()

    async def stop(self) -> None:
        """End the process; requests under way get EngineDeadError."""
        if not self._stopping:
            self._stopping = True
            if self._error is None:
                self._send_soon(Shutdown())
            self._lose(EngineDeadError("the engine was stopped"))
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._dead.set()
        self._socket.close()
        self._launch.folder.cleanup()

    async def _send(self, command: Command) -> None:
        await self._socket.send(self._encoder.encode(command))

    def _send_soon(self, command: Command) -> None:
        """Queue a command from where nothing can be awaited; the pair has no limit, so it never blocks."""
        with contextlib.suppress(zmq.Again):
            self._socket.send(self._encoder.encode(command), flags=zmq.NOBLOCK)

    async def _receive(self) -> None:
        decoder = msgspec.msgpack.Decoder(Event)
        while True:
            event = decoder.decode(await self._socket.recv())
            if isinstance(event, StepOutputs):
                self.stats = event.stats
                for output in event.outputs:
                    if (queue := self._queues.get(output.request_id)) is not None:
                        queue.put_nowait(output)
            elif isinstance(event, LoadProgress):
                self._on_progress(event.stage, event.fraction)
            elif isinstance(event, EngineInfo):
                self._info.set_result(event)
            elif isinstance(event, EngineFailed):
                self._lose(failure(event))

    async def _watch(self) -> None:
        """The process is gone: what it still said comes first, then everyone who waits is told."""
        code = await self._process.wait()
        await asyncio.wait({self._tasks[0]}, timeout=LAST_WORDS_SECONDS)
        self._lose(died(code))
        self._dead.set()

    def _lose(self, error: PlimsollError) -> None:
        if self._error is not None:
            return
        self._error = error
        if not self._info.done():
            self._info.set_exception(error)
            self._info.exception()
        for queue in self._queues.values():
            queue.put_nowait(error)


def _ignore(stage: str, fraction: float) -> None:
    """Nobody asked to see progress."""
