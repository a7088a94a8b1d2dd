"""The process that stands by: it becomes the next engine, and another takes its place, also where it is killed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from plimsoll_runtime.driver.client import AsyncEngine
from plimsoll_runtime.driver.grant import Grant
from plimsoll_runtime.driver.needs import Needs
from plimsoll_runtime.driver.standby import Standby, StandbyDeadError
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.weights.image.image import Image

logger = logging.getLogger(__name__)

TRIES = 3
"""So many processes may end, one after the other, before whoever needs one hears of it."""

Result = TypeVar("Result")


class Spare:
    """Never more than one process. Each call uses another one where the one that stands by has ended or ends."""

    def __init__(self) -> None:
        self._standby: Standby | None = None
        self._asking = asyncio.Lock()

    async def pid(self) -> int:
        """Of the process that stands by, once its imports are done. Raises EngineDeadError."""
        return await self._until_one_lives(self._pid)

    async def needs(self, config: EngineConfig, kv: int | None) -> Needs:
        """What a model would take, as `Standby.needs` has it. Raises EngineDeadError where every process ends."""
        return await self._until_one_lives(lambda: self._needs(config, kv))

    async def engine(self, config: EngineConfig, image: Image | None, grant: Grant) -> AsyncEngine:
        """The process that stands by becomes an engine, as `AsyncEngine.start` has it; another one stands by then.

        An engine that dies while it loads is an EngineDeadError at once: no other is tried.
        """
        return await self._until_one_lives(lambda: self._engine(config, image, grant))

    def close(self) -> None:
        """End the process."""
        if self._standby is not None:
            self._standby.close()
            self._standby = None

    async def _pid(self) -> int:
        async with self._asking:
            return (await self._ready()).pid

    async def _needs(self, config: EngineConfig, kv: int | None) -> Needs:
        async with self._asking:
            standby = await self._ready()
            try:
                return await standby.needs(config, kv)
            except asyncio.CancelledError:
                self.close()  # whoever asks next would be told what it answers to this
                raise

    async def _engine(self, config: EngineConfig, image: Image | None, grant: Grant) -> AsyncEngine:
        async with self._asking:
            standby = await self._ready()
            self._standby = None
        try:
            return await AsyncEngine.start(config, standby=standby, image=image, grant=grant)
        finally:
            self._stand_by()

    async def _ready(self) -> Standby:
        standby = self._stand_by()
        await standby.ready()
        return standby

    def _stand_by(self) -> Standby:
        if self._standby is None or not self._standby.alive:
            self.close()
            self._standby = Standby.spawn()
        return self._standby

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
