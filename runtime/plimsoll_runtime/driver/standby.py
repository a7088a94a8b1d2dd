"""An engine process that has no model yet, and waits to be told what to be."""

from __future__ import annotations

import os
import socket
import subprocess

from plimsoll_runtime.driver.adopted import Adopted
from plimsoll_runtime.driver.failures import error_of
from plimsoll_runtime.driver.linked import LinkedProcess, start_linked
from plimsoll_runtime.driver.needs import Needs
from plimsoll_runtime.driver.pulse import new_page
from plimsoll_runtime.driver.start import Measure, Prepare, Refused, Reply, Start
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.weights.image import Image


class Standby(LinkedProcess):
    """One process. It becomes one engine, or is closed."""

    def __init__(self, process: subprocess.Popen[bytes] | Adopted, end: socket.socket, *, is_ready: bool) -> None:
        super().__init__(process, end, is_ready=is_ready)
        self.page = new_page()

    @classmethod
    def spawn(cls, *, threads: int | None = None, factory: str | None = None) -> Standby:
        """Start a process that imports only what it is told to need; returns at once.

        `threads`: what OpenMP is told to have at most, where that is known already. `factory`: what will build its
        engine, where that is known; it imports that at once. Raises StandbyDeadError.
        """
        environment = dict(os.environ)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        standby = cls(*start_linked("plimsoll_runtime.driver.process", environment), is_ready=True)
        if factory is not None:
            standby._give(Prepare(factory))
        return standby

    async def needs(self, config: EngineConfig, kv: int | None = None) -> Needs:
        """What a model would take, with `kv` bytes of KV cache for good (None: the least, or `config.kv_memory`).

        Its files are found as a load finds them; what a hub has is fetched first, which the process is busy with.
        Raises what a load would: SourceError, ModelError, MemoryLimitError, UsageError, DeviceLostError; and
        StandbyDeadError when it ends instead. Cancelled, it cannot be asked again, but still be started.
        """
        async with self._asking:
            await self._until_ready()
            self._give(Measure(config, kv))
            reply = await self._reply()
        if isinstance(reply, Refused):
            raise error_of(reply.kind, reply.message, device_lost=reply.device_lost)
        assert isinstance(reply, Needs)
        return reply

    def start(self, order: Start, image: Image | None) -> None:
        """Tell it what to be: from now on process, lifeline and page are the caller's.

        Raises StandbyDeadError for one that has ended, UsageError for one that was told before.
        """
        self._check_free()
        self._give(order, [self.page] if image is None else [self.page, image.descriptor])
        self._is_ours = False

    def close(self) -> None:
        """End it, unless it is an engine. May be called again."""
        if self._is_ours:
            os.close(self.page)
        super().close()

    async def _reply(self) -> Reply:
        self._check_free()
        return await super()._reply()

    def _check_free(self) -> None:
        if not self._is_ours:
            raise UsageError("this standby process was closed, or is an engine already; spawn another")
