"""An engine process that has no model yet, and waits to be told what to be."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys

from plimsoll_runtime.driver.adopted import Adopted
from plimsoll_runtime.driver.exits import exit_text
from plimsoll_runtime.driver.failures import error_of
from plimsoll_runtime.driver.lifeline import ParentEnd
from plimsoll_runtime.driver.needs import Needs
from plimsoll_runtime.driver.pulse import new_page
from plimsoll_runtime.driver.start import Measure, Ready, Refused, Reply, Start
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import EngineDeadError, UsageError
from plimsoll_runtime.weights.image.image import Image

logger = logging.getLogger(__name__)

KILL_SECONDS = 5.0


class StandbyDeadError(EngineDeadError):
    """A process ended before it was an engine: whatever it was asked for, another can do."""

    def __init__(self, pid: int, code: int | None) -> None:
        super().__init__(f"the standby process {pid} {exit_text(code)}")


class Standby:
    """One process. It becomes one engine, or is closed.

    `is_ready`: it says nothing by itself. Otherwise its first word is `Ready`.
    """

    def __init__(self, process: subprocess.Popen[bytes] | Adopted, end: socket.socket, *, is_ready: bool) -> None:
        self.process = process
        self.lifeline = ParentEnd(end)
        self.page = new_page()
        self._asking = asyncio.Lock()
        self._is_ready = is_ready
        self._taken = False

    @classmethod
    def spawn(cls, *, threads: int | None = None) -> Standby:
        """Start a process that imports only what it is told to need; returns at once.

        It is in a process group of its own: what a terminal sends to ours (Ctrl-C) is for us to handle.
        `threads`: what OpenMP is told to have at most, where that is known already.
        """
        environment = dict(os.environ)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        command = [sys.executable, "-P", "-m", "plimsoll_runtime.driver.process"]
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(command, stdin=theirs.fileno(), env=environment, process_group=0)
        return cls(process, ours, is_ready=True)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs and can still become an engine."""
        return not self._taken and self.process.poll() is None

    async def ready(self) -> None:
        """Return once it waits to be told. Raises StandbyDeadError when it ends instead."""
        async with self._asking:
            await self._until_ready()

    async def needs(self, config: EngineConfig, kv: int | None = None) -> Needs:
        """What a model would take, with `kv` bytes of KV cache for good (None: the least, or `config.kv_memory`).

        Its files are found as a load finds them; what a hub has is fetched first, which the process is busy with.
        Raises what a load would: SourceError, ModelError, MemoryLimitError, UsageError; StandbyDeadError when it ends
        instead. Cancelled, it cannot be asked again, but still be started.
        """
        async with self._asking:
            await self._until_ready()
            self._give(Measure(config, kv))
            reply = await self._reply()
        if isinstance(reply, Refused):
            raise error_of(reply.kind, reply.message)
        assert isinstance(reply, Needs)
        return reply

    def start(self, order: Start, image: Image | None) -> None:
        """Tell it what to be: from now on process, lifeline and page are the caller's.

        Raises StandbyDeadError for one that has ended, UsageError for one that was told before.
        """
        self._check_free()
        self._give(order, [self.page] if image is None else [self.page, image.descriptor])
        self._taken = True

    def close(self) -> None:
        """End it, unless it is an engine. May be called again."""
        if self._taken:
            return
        self._taken = True
        self.process.kill()
        self.lifeline.close()
        os.close(self.page)
        try:
            self.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("the process %d is killed but not gone; its memory may still be in use", self.pid)

    async def _until_ready(self) -> None:
        if not self._is_ready:
            reply = await self._reply()
            assert isinstance(reply, Ready)
            self._is_ready = True

    def _give(self, order: Start | Measure, descriptors: list[int] | None = None) -> None:
        try:
            self.lifeline.give(order, descriptors or [])
        except OSError as error:
            raise self._gone() from error

    async def _reply(self) -> Reply:
        self._check_free()
        try:
            return await self.lifeline.reply()
        except OSError as error:
            raise self._gone() from error

    def _check_free(self) -> None:
        if self._taken:
            raise UsageError("this standby process was closed, or is an engine already; spawn another")

    def _gone(self) -> StandbyDeadError:
        self.close()
        return StandbyDeadError(self.pid, self.process.returncode)
