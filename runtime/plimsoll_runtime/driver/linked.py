"""A process that takes orders on a socket, from the side of whoever started it."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from plimsoll_runtime.driver.adopted import Adopted
from plimsoll_runtime.driver.failures import exit_text
from plimsoll_runtime.driver.lifeline import ParentEnd
from plimsoll_runtime.driver.start import Order, Ready, Reply
from plimsoll_runtime.errors import EngineDeadError

logger = logging.getLogger(__name__)

KILL_SECONDS = 5.0
AT_ONCE_SECONDS = 1.0
"""How long an event loop may be held up by a killed process: nearly all are gone sooner, others are reaped by a thread.
"""


class StandbyDeadError(EngineDeadError):
    """A process ended before it was an engine: whatever it was asked for, another can do."""

    def __init__(self, pid: int, code: int | None) -> None:
        super().__init__(f"the standby process {pid} {exit_text(code)}")


class LinkedProcess:
    """The process, and our end of its socket. The process ends when that is closed.

    `is_ready`: it says nothing by itself. Otherwise its first word is `Ready`.
    """

    def __init__(self, process: subprocess.Popen[bytes] | Adopted, end: socket.socket, *, is_ready: bool) -> None:
        self.process = process
        self.lifeline = ParentEnd(end)
        self._asking = asyncio.Lock()
        self._is_ready = is_ready
        self._is_ours = True  # not closed, and not given away

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs and can still be asked."""
        return self._is_ours and self.process.poll() is None

    async def ready(self) -> None:
        """Return once it waits to be told. Raises StandbyDeadError when it ends instead."""
        async with self._asking:
            await self._until_ready()

    def close(self) -> None:
        """End it, unless it was given away. May be called again."""
        if not self._is_ours:
            return
        self._is_ours = False
        self.process.kill()
        self.lifeline.close()
        try:
            self.process.wait(AT_ONCE_SECONDS)
        except subprocess.TimeoutExpired:
            threading.Thread(target=self._reap, name="plimsoll-standby-end", daemon=True).start()

    def _reap(self) -> None:
        try:
            self.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("the process %d is killed but not gone; its memory may still be in use", self.pid)
            self.process.wait()

    async def _until_ready(self) -> None:
        if not self._is_ready:
            reply = await self._reply()
            assert isinstance(reply, Ready)
            self._is_ready = True

    def _give(self, order: Order, descriptors: Sequence[int] = ()) -> None:
        try:
            self.lifeline.give(order, descriptors)
        except OSError as error:
            raise self._gone() from error

    async def _reply(self) -> Reply:
        try:
            return await self.lifeline.reply()
        except OSError as error:
            raise self._gone() from error

    def _gone(self) -> StandbyDeadError:
        self.close()
        return StandbyDeadError(self.pid, self.process.returncode)


def start_linked(
    module: str, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a module as a process whose standard input is a socket, and our end of that; returns at once.

    It is in a process group of its own: what a terminal sends to ours (Ctrl-C) is for us to handle.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", module]
    with theirs:
        return subprocess.Popen(command, stdin=theirs.fileno(), env=environment, process_group=0), ours
