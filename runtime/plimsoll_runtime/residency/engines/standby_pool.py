"""The process that stands by: it becomes the next engine, and another takes its place, also where it is killed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from plimsoll_runtime.driver.clients.async_client import AsyncEngine
from plimsoll_runtime.driver.process.control_socket import ControlledProcess, StandbyDeadError
from plimsoll_runtime.driver.process.handshake import Grant, Needs
from plimsoll_runtime.driver.process.standby import ForkServer, StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import EngineDeadError, PlimsollError
from plimsoll_runtime.execution.memory.system import footprint, private_bytes
from plimsoll_runtime.weights.image import Image

logger = logging.getLogger(__name__)

TRIES = 3
"""So many processes may end, one after the other, before whoever needs one hears of it."""
ANSWER_SECONDS = 60.0
"""How long a process may take to be forked, to say its first word, or to read a model's headers, from files that are
there: every wake waits for it."""
OVERLOADED = "see whether this machine has processors and memory to spare"

Result = TypeVar("Result")


class StandbyPool:
    """Never more than one process that stands by, and one that forks it. `seconds`: for each answer of theirs.

    Each call uses others where they have ended or end. All raise MemoryLimitError where no process can be forked, and
    EngineDeadError where one says nothing for too long, which is ended.
    """

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._server: ForkServer | None = None
        self._standby: StandbyProcess | None = None
        self._asking = asyncio.Lock()
        self._refilling: asyncio.Task[None] | None = None

    async def pids(self) -> tuple[int, int]:
        """Of the process that forks, and of the one that stands by, once it can be used. Raises EngineDeadError."""
        return await self._until_one_lives(self._pids)

    async def footprints(self) -> tuple[int, int]:
        """Bytes of the process that forks, and of the one that stands by: its anonymous ones, and what each costs more.

        Raises EngineDeadError.
        """
        return await self._until_one_lives(self._footprints)

    async def needs(self, config: EngineConfig, kv: int | None) -> Needs:
        """What a model would take: see `StandbyProcess.needs`. Raises EngineDeadError where every process ends."""
        return await self._until_one_lives(lambda: self._needs(config, kv))

    async def engine(self, config: EngineConfig, image: Image | None, grant: Grant) -> AsyncEngine:
        """The process that stands by becomes an engine, as `AsyncEngine.start` has it; then another one stands by.

        An engine that dies while it loads is an EngineDeadError at once: no other is tried.
        """
        return await self._until_one_lives(lambda: self._engine(config, image, grant))

    async def close(self) -> None:
        """End the processes; engines go on."""
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
            # Of one that has just ended, what was read is not true.
            self._check_alive(server, standby)
            return found

    async def _needs(self, config: EngineConfig, kv: int | None) -> Needs:
        async with self._asking:
            standby = await self._ready()
            who, what_to_do = f"reads the headers of {config.model}", "see whether the disk that has its files answers"
            try:
                return await self._in_time(standby.needs(config, kv), standby, who, what_to_do)
            except asyncio.CancelledError:
                self._drop_standby()  # whoever asks next would be told what it answers to this
                raise

    async def _engine(self, config: EngineConfig, image: Image | None, grant: Grant) -> AsyncEngine:
        async with self._asking:
            standby = await self._ready()
            self._standby = None
        try:
            return await AsyncEngine.start(config, standby=standby, image=image, grant=grant)
        finally:
            self._refill()

    def _refill(self) -> None:
        """Another one stands by soon; not before the engine serves, which somebody waits for."""
        if self._refilling is None or self._refilling.done():
            self._refilling = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        try:
            await self.pids()
        except PlimsollError as error:
            logger.warning("no process stands by: %s; the next wake tries again", error)

    async def _ready(self) -> StandbyProcess:
        if self._standby is None or not self._standby.alive:
            self._drop_standby()
            self._standby = await self._fork()
        await self._in_time(self._standby.ready(), self._standby, "is to stand by", OVERLOADED)
        self._check_alive(self._standby)  # it may have said so and then ended
        return self._standby

    async def _fork(self) -> StandbyProcess:
        if self._server is None or not self._server.alive:
            if self._server is not None:
                self._server.close()
            self._server = ForkServer.spawn()
        server = self._server
        await server.ready()  # its imports take as long as the disk that has them
        return await self._in_time(server.fork(), server, "forks engines", OVERLOADED)

    async def _in_time(
        self, answer: Awaitable[Result], process: ControlledProcess, who: str, what_to_do: str
    ) -> Result:
        """What a process answers. One that does not in time is ended: EngineDeadError."""
        try:
            async with asyncio.timeout(self._seconds):
                return await answer
        except TimeoutError as error:
            process.close()
            raise EngineDeadError(
                f"the process that {who} said nothing for {self._seconds:g} s and was ended: {what_to_do}"
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
                    what = f"{TRIES} standby processes have ended one after the other"
                    raise EngineDeadError(f"{what}; of the last: {error}") from error
                logger.warning("%s; another one takes its place", error)
        raise AssertionError("the last try returns or raises")
