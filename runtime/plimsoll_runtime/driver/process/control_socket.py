"""The socket that is a process's standard input: orders and descriptors go in, replies come back, and the process ends
when its parent does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

import msgspec

from plimsoll_runtime.driver.process.exit_errors import exit_text
from plimsoll_runtime.driver.process.handshake import Order, Ready, Reply
from plimsoll_runtime.errors import EngineDeadError

STDIN = 0
PIECE = 65536
MOST_DESCRIPTORS = 4


class ChildEnd:
    """The process's side."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._decoder = msgspec.json.Decoder(Order)
        self._read, self._descriptors = bytearray(), list[int]()

    @classmethod
    def from_stdin(cls) -> ChildEnd:
        """Of this process. Ends it with a word to who started it by hand."""
        try:
            return cls(socket.socket(fileno=os.dup(STDIN)))
        except OSError:
            sys.exit("an engine's process is started by its client, not by hand: `plimsoll serve` does it")

    def take(self) -> tuple[Order, list[int]] | None:
        """Wait for the next order, and the descriptors that came with it; None when the parent has gone."""
        while b"\n" not in self._read:
            piece, found, _, _ = socket.recv_fds(self._end, PIECE, MOST_DESCRIPTORS)
            if not piece:
                return None
            self._read += piece
            self._descriptors += found
        line, _, self._read = self._read.partition(b"\n")
        order = self._decoder.decode(line)
        ours, self._descriptors = self._descriptors[: order.descriptors], self._descriptors[order.descriptors :]
        return order, ours

    def reply(self, reply: Reply) -> None:
        """Raises OSError when the parent has gone."""
        self._end.sendall(_line(reply))

    def close(self) -> None:
        """Close this process's descriptor of it; its standard input stays."""
        self._end.close()


class ParentEnd:
    """The side of whoever started the process. `OSError` means that the process has gone."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
        self._read = bytearray()
        self._waiting = self._closing = False

    def give(self, order: Order, descriptors: Sequence[int] = ()) -> None:
        """Give an order. Raises OSError."""
        line = _line(order)
        self.socket.setblocking(True)
        sent = socket.send_fds(self.socket, [line], descriptors) if descriptors else self.socket.send(line)
        self.socket.sendall(line[sent:])

    async def reply(self) -> Reply:
        """The next reply, for one who waits at a time. Raises OSError, also where it is closed meanwhile."""
        self.socket.setblocking(False)
        self._waiting = True
        try:
            while b"\n" not in self._read:
                await self._read_more()
        finally:
            self._waiting = False
            if self._closing:
                self.socket.close()
        line, _, rest = self._read.partition(b"\n")
        self._read = rest
        return self._decoder.decode(line)

    def close(self) -> None:
        """Close it, which ends the process. May be called again."""
        if self._waiting:
            # An event loop is not told of a descriptor that is closed; it is told of the end of what comes.
            self._closing = True
            self.socket.shutdown(socket.SHUT_RDWR)
        else:
            self.socket.close()

    async def _read_more(self) -> None:
        piece = await asyncio.get_running_loop().sock_recv(self.socket, PIECE)
        if not piece:
            raise ConnectionResetError("the process has closed its end")
        self._read += piece


def _line(message: Order | Reply) -> bytes:
    return msgspec.json.encode(message) + b"\n"


class AdoptedProcess:
    """What `subprocess.Popen` offers of a process, for one that is our child by adoption (see `standby.ForkServer`).

    The methods may be called by several threads. A descriptor of the process (`pidfd_open(2)`) stands for it, so that
    nothing is ever sent to another that got its number.
    """

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError where there is none of that number."""
        self.pid = pid
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None and (code := self._reap()) is not None:
                self.returncode = code
                os.close(self._descriptor)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has one. Raises subprocess.TimeoutExpired after so many seconds."""
        with self._lock:
            if self.returncode is not None:
                return self.returncode
            descriptor = os.dup(self._descriptor)
        try:
            ends = select.poll()
            ends.register(descriptor, select.POLLIN)
            if not ends.poll(None if timeout is None else timeout * 1000):
                assert timeout is not None
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        finally:
            os.close(descriptor)
        code = self.poll()
        assert code is not None
        return code

    def kill(self) -> None:
        """End it, unless it has ended."""
        with self._lock:
            if self.returncode is None:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def _reap(self) -> int | None:
        try:
            ended = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            # Whoever ignores SIGCHLD is never told. `subprocess` says 0 then, and so do we.
            return 0
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


logger = logging.getLogger(__name__)

KILL_SECONDS = 5.0
AT_ONCE_SECONDS = 1.0
"""How long an event loop may be held up by a killed process: nearly all are gone sooner, others are reaped by a thread.
"""


class StandbyDeadError(EngineDeadError):
    """A process ended before it was an engine: whatever it was asked for, another can do."""

    def __init__(self, pid: int, code: int | None) -> None:
        super().__init__(f"the standby process {pid} {exit_text(code)}")


class ControlledProcess:
    """The process, and our end of its socket. The process ends when that is closed.

    `is_ready`: it says nothing by itself. Otherwise its first word is `Ready`.
    """

    def __init__(
        self, process: subprocess.Popen[bytes] | AdoptedProcess, end: socket.socket, *, is_ready: bool
    ) -> None:
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
