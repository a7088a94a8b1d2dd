"""The client's side of an engine process: its socket folder, start, messages and end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import msgspec
import zmq

from plimsoll_runtime.driver.process.control_socket import StandbyDeadError
from plimsoll_runtime.driver.process.exit_errors import exit_text
from plimsoll_runtime.driver.process.handshake import BUILD, Drain, Grant, Start
from plimsoll_runtime.driver.process.heartbeat import Pulse, Watch
from plimsoll_runtime.driver.process.standby import StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import Command, Event
from plimsoll_runtime.errors import EngineDeadError, ErrorKind
from plimsoll_runtime.utils import folder_lock
from plimsoll_runtime.weights.image import Image
from plimsoll_telemetry.logs import log_settings

logger = logging.getLogger(__name__)

PREFIX = "plimsoll-"
OWNER = "owner"
PATH_LIMIT = 100
"""Longest Unix socket path that every kernel accepts, minus the suffix that ZeroMQ may append."""


class SocketFolder:
    """A private folder for sockets, with a path short enough for them. Creating one removes stale folders next to it.

    It is private to this user and locked while its owner lives. A killed process removes nothing, so each owner removes
    the folders whose lock it can get: the kernel releases locks however a process ends.
    """

    def __init__(self, longest_name: str) -> None:
        parent = tempfile.gettempdir()
        if len(f"{parent}/{PREFIX}12345678/{longest_name}") > PATH_LIMIT:
            parent = "/tmp"
        remove_stale(Path(parent))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            self._lock = _lock_own(self.path)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Remove the folder and its contents."""
        folder_lock.remove(self.path, OWNER)
        os.close(self._lock)


def remove_stale(parent: Path) -> None:
    """Remove folders left by killed processes. Anything that is not certainly such a folder of this user stays."""
    for folder in parent.glob(f"{PREFIX}*"):
        held = _lock_stale(folder)
        if held is None:
            continue
        try:
            folder_lock.remove(folder, OWNER)
            logger.info("removed %s, left by a killed process", folder)
        except OSError as error:
            logger.warning("cannot remove %s, left by a killed process: %s", folder, error)
        finally:
            os.close(held)


def _lock_own(folder: Path) -> int:
    """Create the lock file and return its descriptor, which holds the lock until it is closed.

    The file gets its name after it is locked, so that no other process sees it unlocked.
    """
    unnamed = folder / f"{OWNER}.new"
    descriptor = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        unnamed.rename(folder / OWNER)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock_stale(folder: Path) -> int | None:
    """Return the lock of a folder of this user whose owner is gone; None for any other folder."""
    try:
        return folder_lock.lock(folder, OWNER, make=False) if folder_lock.is_ours(folder) else None
    except OSError:
        # Not marked yet, not by this user, or already removed by another process.
        return None


KILL_SECONDS = 5.0
"""Time for a killed process to end. A process that waits for a broken driver or disk may never end."""
LAST_WORDS_SECONDS = 2.0
"""Time for the error message of an ended process to arrive on the socket."""


class EngineChild:
    """A started engine process, its two sockets, and a file descriptor that signals its end.

    `ended_fd` becomes readable when the process has ended; `exit_code` is known then. A `standby` becomes that process;
    `image` and `grant` are passed to the factory.

    The two processes are tied by descriptors that the kernel closes when one of them ends, however it ends: the child
    ends when its standard input does, and the parent sees a pipe become readable. Neither polls the other.
    """

    def __init__(
        self,
        config: EngineConfig,
        factory: str = BUILD,
        *,
        standby: StandbyProcess | None = None,
        image: Image | None = None,
        grant: Grant | None = None,
    ) -> None:
        """Start the engine. Raises StandbyDeadError for a standby that has ended, UsageError for one already in use.

        If this raises, the standby is used up, and nothing stays open.
        """
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Event)
        self._closed = self._untold = False
        self._sent = 0
        self._step_timeout = config.step_timeout
        self._watch = Watch(config.step_timeout)
        with contextlib.ExitStack() as undo:
            if standby is not None:
                undo.callback(standby.close)
            self._open(undo)
            if standby is None:
                standby = StandbyProcess.spawn(threads=config.threads)
                undo.callback(standby.close)
            standby.start(self._order(config, factory, image, grant), () if image is None else (image.descriptor,))
            self._adopt(standby, undo)
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; negative if a signal ended it."""
        return self._process.returncode

    @property
    def events_fd(self) -> int:
        """A descriptor that becomes readable on new events. It is edge-triggered: read events until there are none."""
        return int(self.events.get(zmq.FD))

    def send(self, command: Command) -> None:
        """Queue a command; never blocks. A command for a process that has ended or is not connected yet is dropped."""
        if not self._closed:
            # A PUSH socket queues any number of messages for a connected peer (no limit is set), and none without one.
            with contextlib.suppress(zmq.Again):
                self.commands.send(self._encoder.encode(command), zmq.NOBLOCK)
                self._sent += 1

    def receive(self) -> Event | None:
        """Return the next event, or None; never blocks."""
        try:
            event: Event = self._decoder.decode(self.events.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None
        return event

    def check(self) -> EngineDeadError | None:
        """Kill a hung process and return the error for that. Call it every `heartbeat.CHECK_SECONDS`."""
        beat = self._pulse.read()
        if not self._watch.is_hung(beat, self._sent):
            return None
        self.kill()
        what = "a step took" if beat.due_ns else "it did not read a request for"
        rest = " and ten times as long as steps of its size do" if beat.due_ns else ""
        return EngineDeadError(
            f"the engine process hung and was killed: {what} more than {self._step_timeout:g} s{rest}; "
            "if such steps are normal here, raise --step-timeout"
        )

    def drain(self) -> None:
        """Make the leader of a parallel group keep its members until its end. It takes effect at once, also during a
        long step.
        """
        with contextlib.suppress(OSError):  # the process has ended
            self._lifeline.give(Drain())

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the process's end; return whether it has ended."""
        self._waiter.join(seconds)
        return not self._waiter.is_alive()

    def close(self, patience: float = KILL_SECONDS) -> None:
        """Kill the process if it runs, and free everything, within `patience` seconds. May be called again."""
        if self._closed:
            return
        self._closed = True
        self.kill()
        if not self.wait(patience):
            logger.error("the engine process %d was killed but has not ended; its memory may still be in use", self.pid)
        self._lifeline.close()
        self._pulse.close()
        os.close(self.ended_fd)
        self._context.destroy(linger=0)
        self._folder.remove()

    def death(self) -> EngineDeadError:
        """Return the error for a process that ended without a message; StandbyDeadError if it never read its order."""
        if self._untold:
            return StandbyDeadError(self.pid, self.exit_code)
        return EngineDeadError(f"the engine process {exit_text(self.exit_code)}")

    @property
    def owes_a_reason(self) -> bool:
        """Whether it ended with the exit code of a PlimsollError, so that the error's message must arrive."""
        return self.exit_code in {kind.exit_code for kind in ErrorKind}

    def _open(self, undo: contextlib.ExitStack) -> None:
        self._folder = SocketFolder(longest_name="commands")
        undo.callback(self._folder.remove)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        undo.callback(self._context.destroy, linger=0)
        self.commands = self._bind(zmq.PUSH, "commands")
        self.events = self._bind(zmq.PULL, "events")
        self.ended_fd, self._ending_fd = os.pipe()
        undo.callback(os.close, self.ended_fd)
        undo.callback(os.close, self._ending_fd)

    def _adopt(self, standby: StandbyProcess, undo: contextlib.ExitStack) -> None:
        """Take over the process, control socket and heartbeat page of a standby."""
        self._process, self._lifeline = standby.process, standby.lifeline
        undo.callback(self._end)
        undo.callback(self._lifeline.close)
        with os.fdopen(standby.page, "rb", buffering=0) as page:
            self._pulse = Pulse(page.fileno())
        undo.callback(self._pulse.close)
        self._waiter = threading.Thread(target=self._wait, name="plimsoll-engine-end", daemon=True)
        self._waiter.start()

    def _end(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)

    def _bind(self, kind: int, name: str) -> zmq.Socket[bytes]:
        end = self._context.socket(kind)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            end.set(option, 0)
        end.bind(self._address(name))
        return end

    def _address(self, name: str) -> str:
        return f"ipc://{self._folder.path}/{name}"

    def _order(self, config: EngineConfig, factory: str, image: Image | None, grant: Grant | None) -> Start:
        return Start(
            config=config,
            factory=factory,
            commands=self._address("commands"),
            events=self._address("events"),
            parent=os.getpid(),
            log=log_settings(),
            has_image=image is not None,
            grant=grant,
        )

    def _wait(self) -> None:
        self._process.wait()
        with contextlib.suppress(OSError):  # closed, if the process outlived `close`
            # The kernel reports this if the peer left data unread.
            self._untold = self._lifeline.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
        os.close(self._ending_fd)
