"""A process that has imported what every engine needs, and forks one whenever it is asked.

What was imported is then in memory once, however many engines there are: an engine's own memory is what it writes to.
What it forks is at once no child of its own but of whoever started it, which is told when an engine ends, and how.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import socket
import subprocess
import sys
from collections.abc import Awaitable

from plimsoll_runtime.driver.adopted import Adopted
from plimsoll_runtime.driver.failures import error_of
from plimsoll_runtime.driver.lifeline import ParentEnd
from plimsoll_runtime.driver.standby import KILL_SECONDS, Standby, StandbyDeadError
from plimsoll_runtime.driver.start import Fork, Forked, Ready, Refused, Reply

logger = logging.getLogger(__name__)

PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h: processes below this one that lose their parent become its children."""


class ForkServer:
    """The side of whoever wants engines. The process ends when this one does."""

    def __init__(self, process: subprocess.Popen[bytes], end: socket.socket) -> None:
        self._process = process
        self._line = ParentEnd(end)
        self._asking = asyncio.Lock()
        self._is_ready = self._closed = False

    @classmethod
    def spawn(cls) -> ForkServer:
        """Start the process; returns at once, while it imports for some seconds. Raises OSError."""
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "engines cannot be adopted: prctl(PR_SET_CHILD_SUBREAPER)")
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "plimsoll_runtime.driver.forking"]
        with theirs:
            return cls(subprocess.Popen(command, stdin=theirs.fileno(), process_group=0), ours)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return not self._closed and self._process.poll() is None

    async def fork(self) -> Standby:
        """Another process that stands by. Raises StandbyDeadError when the fork server ends instead.

        Raises MemoryLimitError where there is no room for one more process. Cancelled, it leaves no process.
        """
        forking = asyncio.ensure_future(self._asked())
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(_close)
            raise

    async def ready(self) -> None:
        """Return once its imports are done. Raises StandbyDeadError when it ends instead."""
        async with self._asking:
            await self._until_ready()

    def close(self) -> None:
        """End it; the engines go on. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._process.kill()
        self._line.close()
        try:
            self._process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("the fork server %d is killed but not gone; its memory may still be in use", self.pid)

    async def _asked(self) -> Standby:
        async with self._asking:
            await self._until_ready()
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    self._give(theirs)
                reply = await self._until(self._line.reply())
                if isinstance(reply, Refused):
                    raise error_of(reply.kind, reply.message)
                assert isinstance(reply, Forked)
            except BaseException:
                ours.close()
                raise
        return Standby(Adopted(reply.pid), ours, is_ready=False)

    async def _until_ready(self) -> None:
        if not self._is_ready:
            reply = await self._until(self._line.reply())
            assert isinstance(reply, Ready)
            self._is_ready = True

    def _give(self, end: socket.socket) -> None:
        try:
            self._line.give(Fork(), [end.fileno()])
        except OSError as error:
            raise self._gone() from error

    async def _until(self, reply: Awaitable[Reply]) -> Reply:
        try:
            return await reply
        except OSError as error:
            raise self._gone() from error

    def _gone(self) -> StandbyDeadError:
        self.close()
        return StandbyDeadError(self.pid, self._process.returncode)


def _close(forked: asyncio.Future[Standby]) -> None:
    """Nobody wants it any more."""
    if not forked.cancelled() and forked.exception() is None:
        forked.result().close()
