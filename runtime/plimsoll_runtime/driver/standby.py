"""An engine process that has no model yet: started, its imports done or under way, waiting to be told what to be."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys

import msgspec

from plimsoll_runtime.driver.exits import exit_text
from plimsoll_runtime.driver.failures import error_of
from plimsoll_runtime.driver.lifeline import PIECE, send
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

    It is in a process group of its own: what a terminal sends to ours (Ctrl-C) is for us to handle.
    """

    def __init__(self, process: subprocess.Popen[bytes], lifeline: socket.socket, page: int) -> None:
        self.process = process
        self.lifeline = lifeline
        self.page = page
        self._replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
        self._read = bytearray()
        self._asking = asyncio.Lock()
        self._is_ready = False
        self._taken = False

    @classmethod
    def spawn(cls, *, warm: bool = True, threads: int | None = None) -> Standby:
        """Start a process; returns at once. With `warm` it imports what an engine needs before it is told what to be.

        `threads`: what OpenMP is told to have at most, where that is known already.
        """
        environment = dict(os.environ)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        command = [sys.executable, "-P", "-m", "plimsoll_runtime.driver.process", *(["--warm"] if warm else [])]
        ours, theirs = socket.socketpair()
        page = new_page()
        with theirs:
            stdin = theirs.fileno()
            process = subprocess.Popen(command, stdin=stdin, env=environment, process_group=0, pass_fds=(page,))
        return cls(process, ours, page)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs and can still become an engine."""
        return not self._taken and self.process.poll() is None

    async def ready(self) -> None:
        """Return once its imports are done. Raises StandbyDeadError when it ends instead."""
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
        self.lifeline.setblocking(True)
        self._give(order, [] if image is None else [image.descriptor])
        self._taken = True

    def close(self) -> None:
        """End it, unless it is an engine. May be called again."""
        if self._taken:
            return
        self._taken = True
        self._end()

    def _end(self) -> None:
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
            send(self.lifeline, order, descriptors or [])
        except OSError as error:
            raise self._gone() from error

    async def _reply(self) -> Reply:
        self._check_free()
        self.lifeline.setblocking(False)
        loop = asyncio.get_running_loop()
        while b"\n" not in self._read:
            try:
                piece = await loop.sock_recv(self.lifeline, PIECE)
            except OSError as error:
                raise self._gone() from error
            if not piece:
                raise self._gone()
            self._read += piece
        line, _, rest = self._read.partition(b"\n")
        self._read = rest
        return self._replies.decode(line)

    def _check_free(self) -> None:
        if self._taken:
            raise UsageError("this standby process was closed, or is an engine already; spawn another")

    def _gone(self) -> StandbyDeadError:
        self.close()
        return StandbyDeadError(self.pid, self.process.returncode)
