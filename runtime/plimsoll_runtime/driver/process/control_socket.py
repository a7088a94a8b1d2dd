"""The socket that is an engine process's standard input: it carries orders and descriptors to the process and replies
back, and the process ends when its parent closes it.
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
MOST_DESCRIPTORS = 8


class ChildEnd:
    """The process's side of the socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._decoder = msgspec.json.Decoder(Order)
        self._read, self._descriptors = bytearray(), list[int]()

    @classmethod
    def from_stdin(cls) -> ChildEnd:
        """Open the socket of this process. Exits with a message if the process was started by hand."""
        try:
            return cls(socket.socket(fileno=os.dup(STDIN)))
        except OSError:
            sys.exit("do not start an engine process by hand; run `plimsoll serve`")

    def take(self) -> tuple[Order, list[int]] | None:
        """Wait for the next order and its descriptors; None if the parent has closed the socket."""
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
        """Send a reply. Raises OSError if the parent has closed the socket."""
        self._end.sendall(_line(reply))

    def close(self) -> None:
        """Close this descriptor of the socket; standard input stays open."""
        self._end.close()


class ParentEnd:
    """The parent's side of the socket. `OSError` means that the process has ended."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
        self._read = bytearray()
        self._waiting = self._closing = False

    def give(self, order: Order, descriptors: Sequence[int] = ()) -> None:
        """Send an order. Raises OSError."""
        line = _line(order)
        self.socket.setblocking(True)
        sent = socket.send_fds(self.socket, [line], descriptors) if descriptors else self.socket.send(line)
        self.socket.sendall(line[sent:])

    async def reply(self) -> Reply:
        """Return the next reply, for one caller at a time. Raises OSError, also if the socket is closed during the
        wait.
        """
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
        """Close the socket, which ends the process. May be called again."""
        if self._waiting:
            # An event loop does not notice a closed descriptor, but it notices the end of the stream.
            self._closing = True
            self.socket.shutdown(socket.SHUT_RDWR)
        else:
            self.socket.close()

    async def _read_more(self) -> None:
        piece = await asyncio.get_running_loop().sock_recv(self.socket, PIECE)
        if not piece:
            raise ConnectionResetError("the process has closed its end of the control socket")
        self._read += piece


def _line(message: Order | Reply) -> bytes:
    return msgspec.json.encode(message) + b"\n"


class AdoptedProcess:
    """The part of `subprocess.Popen`'s interface that engines need, for an adopted child process (see
    `standby.ForkServer`).

    The methods are thread-safe. A process descriptor (`pidfd_open(2)`) identifies the process, so that no signal
    reaches another process that reuses its id.
    """

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError if there is no such process."""
        self.pid = pid
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None and (code := self._reap()) is not None:
                self.returncode = code
                os.close(self._descriptor)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code and return it. Raises subprocess.TimeoutExpired after `timeout` seconds."""
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
        """Kill the process, unless it has ended."""
        with self._lock:
            if self.returncode is None:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def _reap(self) -> int | None:
        try:
            ended = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            # If SIGCHLD is ignored, the exit code is lost. Return 0, as `subprocess` does.
            return 0
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


logger = logging.getLogger(__name__)

KILL_SECONDS = 5.0
AT_ONCE_SECONDS = 1.0
"""Time that an event loop may be blocked by a killed process. Nearly all end sooner; a thread reaps the others."""


class StandbyDeadError(EngineDeadError):
    """A process ended before it became an engine. Another one can do its work."""

    def __init__(self, pid: int, code: int | None) -> None:
        super().__init__(f"the standby process {pid} {exit_text(code)}")


class ControlledProcess:
    """A child process and the parent's end of its control socket. The process ends when that is closed.

    `is_ready`: the process sends nothing unasked. Otherwise its first message is `Ready`.
    """

    def __init__(
        self, process: subprocess.Popen[bytes] | AdoptedProcess, end: socket.socket, *, is_ready: bool
    ) -> None:
        self.process = process
        self.lifeline = ParentEnd(end)
        self._asking = asyncio.Lock()
        self._is_ready = is_ready
        self._is_ours = True  # neither closed nor handed over

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs and can take orders."""
        return self._is_ours and self.process.poll() is None

    async def ready(self) -> None:
        """Return when the process accepts orders. Raises StandbyDeadError if it ends instead."""
        async with self._asking:
            await self._until_ready()

    def close(self) -> None:
        """Kill the process, unless it was handed over. May be called again."""
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
            logger.error("the process %d was killed but has not ended; its memory may still be in use", self.pid)
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
    """Start a module as a process whose standard input is a socket; return it and this end of the socket immediately.

    It has its own process group, so that signals of a terminal (Ctrl-C) reach only this process.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", module]
    with theirs:
        return subprocess.Popen(command, stdin=theirs.fileno(), env=environment, process_group=0), ours
