"""Keeps one standby process, which becomes the next engine, and replaces it when it is used or dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from plimsoll_runtime.driver.clients.async_client import AsyncEngine, OnTraced
from plimsoll_runtime.driver.process.control_socket import ControlledProcess, StandbyDeadError
from plimsoll_runtime.driver.process.handshake import Grant, Needs
from plimsoll_runtime.driver.process.standby import ForkServer, StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import EngineDeadError, PlimsollError
from plimsoll_runtime.execution.memory.system import footprint, private_bytes
from plimsoll_runtime.utils.progress import Progress
from plimsoll_runtime.weights.image import Image

logger = logging.getLogger(__name__)

TRIES = 3
"""Number of processes that may die in a row before a call raises."""
ANSWER_SECONDS = 60.0
"""Time for a process to be forked, to report that it is ready, or to read a model's headers from local files. Every
wake waits for these."""
OVERLOADED = "check the load and the free memory of this machine"

Result = TypeVar("Result")


class StandbyPool:
    """At most one standby process, and one fork server. `seconds`: time limit for each of their answers.

    Each call replaces processes that have ended. All calls raise MemoryLimitError if no process can be forked, and
    EngineDeadError if a process does not answer in time; that process is killed.
    """

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._server: ForkServer | None = None
        self._standby: StandbyProcess | None = None
        self._asking = asyncio.Lock()
        self._refilling: asyncio.Task[None] | None = None

    async def pids(self) -> tuple[int, int]:
        """Return the process ids of the fork server and the standby process, once it is ready. Raises
        EngineDeadError.
        """
        return await self._until_one_lives(self._pids)

    async def footprints(self) -> tuple[int, int]:
        """Return the bytes of private memory of the fork server, and those that one more standby process adds.

        Raises EngineDeadError.
        """
        return await self._until_one_lives(self._footprints)

    async def needs(self, config: EngineConfig, kv: int | None) -> Needs:
        """Return a model's memory needs; see `StandbyProcess.needs`. Raises EngineDeadError if every process ends."""
        return await self._until_one_lives(lambda: self._needs(config, kv))

    async def engine(
        self,
        config: EngineConfig,
        image: Image | None,
        grant: Grant,
        on_progress: Progress | None = None,
        on_traced: OnTraced | None = None,
    ) -> AsyncEngine:
        """Turn the standby process into an engine, as `AsyncEngine.start` does, and start to replace it.

        If the engine dies while it loads, raises EngineDeadError without another attempt.
        """
        return await self._until_one_lives(lambda: self._engine(config, image, grant, on_progress, on_traced))

    async def close(self) -> None:
        """End the processes; engines continue."""
        if self._refilling is not None:
            self._refilling.cancel()
            await asyncio.wait([self._refilling])
        self._drop_standby()
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _pids(self) -> tuple[int, int]:
        async with self._asking:
            standby = await self._ready()
            assert self._server is not None
            return self._server.pid, standby.pid

    async def _footprints(self) -> tuple[int, int]:
        async with self._asking:
            standby, server = await self._ready(), self._server
            assert server is not None
            try:
                found = footprint(server.pid).anonymous, private_bytes(standby.pid)
            except OSError:
                self._check_alive(server, standby)
                raise
            # A measurement of a process that has just ended is wrong.
            self._check_alive(server, standby)
            return found

    async def _needs(self, config: EngineConfig, kv: int | None) -> Needs:
        async with self._asking:
            standby = await self._ready()
            who, what_to_do = f"reads the headers of {config.model}", "check the disk that has its files"
            try:
                return await self._in_time(standby.needs(config, kv), standby, who, what_to_do)
            except asyncio.CancelledError:
                self._drop_standby()  # its next answer would belong to this question
                raise

    async def _engine(
        self,
        config: EngineConfig,
        image: Image | None,
        grant: Grant,
        on_progress: Progress | None,
        on_traced: OnTraced | None,
    ) -> AsyncEngine:
        async with self._asking:
            standby = await self._ready()
            self._standby = None
        try:
            return await AsyncEngine.start(
                config, on_progress, standby=standby, image=image, grant=grant, on_traced=on_traced
            )
        finally:
            self._refill()

    def _refill(self) -> None:
        """Start another standby process. Called after an engine has started, so as not to delay it."""
        if self._refilling is None or self._refilling.done():
            self._refilling = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        try:
            await self.pids()
        except PlimsollError as error:
            logger.warning("cannot start a standby process: %s; the next wake tries again", error)

    async def _ready(self) -> StandbyProcess:
        if self._standby is None or not self._standby.alive:
            self._drop_standby()
            self._standby = await self._fork()
        await self._in_time(self._standby.ready(), self._standby, "should become the standby process", OVERLOADED)
        self._check_alive(self._standby)  # it may have ended after its answer
        return self._standby

    async def _fork(self) -> StandbyProcess:
        if self._server is None or not self._server.alive:
            if self._server is not None:
                self._server.close()
            self._server = ForkServer.spawn()
        server = self._server
        await server.ready()  # importing takes as long as the disk needs
        return await self._in_time(server.fork(), server, "forks engines", OVERLOADED)

    async def _in_time(
        self, answer: Awaitable[Result], process: ControlledProcess, who: str, what_to_do: str
    ) -> Result:
        """Return a process's answer. If it takes too long, kill the process and raise EngineDeadError."""
        try:
            async with asyncio.timeout(self._seconds):
                return await answer
        except TimeoutError as error:
            process.close()
            raise EngineDeadError(
                f"the process that {who} did not answer for {self._seconds:g} s and was killed; {what_to_do}"
            ) from error

    def _check_alive(self, *processes: ControlledProcess) -> None:
        for process in processes:
            if not process.alive:
                self._drop_standby()
                raise StandbyDeadError(process.pid, process.process.returncode)

    def _drop_standby(self) -> None:
        if self._standby is not None:
            self._standby.close()
            self._standby = None

    async def _until_one_lives(self, work: Callable[[], Awaitable[Result]]) -> Result:
        for left in reversed(range(TRIES)):
            try:
                return await work()
            except StandbyDeadError as error:
                if not left:
                    what = f"{TRIES} standby processes ended in a row"
                    raise EngineDeadError(f"{what}; the last one: {error}") from error
                logger.warning("%s; starting another one", error)
        raise AssertionError("the last try returns or raises")
