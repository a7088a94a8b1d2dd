"""An engine process from the side of its clients: its socket folder, start, messages and end."""

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
from plimsoll_runtime.driver.process.exit_errors import error_of, exit_text
from plimsoll_runtime.driver.process.handshake import BUILD, Grant, Start
from plimsoll_runtime.driver.process.heartbeat import Pulse, Watch
from plimsoll_runtime.driver.process.standby import StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import Command, EngineFailed, Event
from plimsoll_runtime.errors import EngineDeadError, ErrorKind, PlimsollError
from plimsoll_runtime.utils import folder_lock
from plimsoll_runtime.weights.image import Image

logger = logging.getLogger(__name__)

PREFIX = "plimsoll-"
OWNER = "owner"
PATH_LIMIT = 100
"""Longest path of a Unix socket that every kernel takes, less the end that ZeroMQ may add."""


class SocketFolder:
    """A folder of one's own for sockets, with a path short enough for them; stale ones beside it are gone.

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
        """Remove it and what is in it."""
        folder_lock.remove(self.path, OWNER)
        os.close(self._lock)


def remove_stale(parent: Path) -> None:
    """Remove what is left of processes that were killed. What is not certainly such a folder of ours stays."""
    for folder in parent.glob(f"{PREFIX}*"):
        held = _lock_stale(folder)
        if held is None:
            continue
        try:
            folder_lock.remove(folder, OWNER)
            logger.info("removed %s, which was left by a process that was killed", folder)
        except OSError as error:
            logger.warning("%s is left of a process that was killed and cannot be removed: %s", folder, error)
        finally:
            os.close(held)


def _lock_own(folder: Path) -> int:
    """The descriptor of a lock that is held until it is closed. It gets its name locked: nobody sees it otherwise."""
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
    """The lock of a folder of this user, made as above, whose owner is gone; of any other folder none."""
    try:
        return folder_lock.lock(folder, OWNER, make=False) if folder_lock.is_ours(folder) else None
    except OSError:
        # Not marked yet, not by us, or gone: another process that starts was faster.
        return None


KILL_SECONDS = 5.0
"""How long a killed process may take to be gone: one that waits for a broken driver or disk may never be."""
LAST_WORDS_SECONDS = 2.0
"""How long an ended process's reason may take to come out of the socket."""


class EngineChild:
    """A started engine process, its two sockets, and a file descriptor that says when it is gone.

    `ended_fd` becomes readable when the process has ended; `exit_code` is known then. A `standby` becomes that process;
    `image` and `grant` are for what it builds.

    The two processes are tied by descriptors that the kernel closes when one of them ends, however it ends: the child
    ends when its standard input does, the parent sees a pipe become readable. Neither polls the other.
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
        """Raises StandbyDeadError for a standby that has ended, UsageError for one that is an engine already.

        Whatever is raised, the standby is used up, and nothing stays open.
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
            standby.start(self._order(config, factory, image, grant), image)
            self._adopt(standby, undo)
            undo.pop_all()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._process.returncode

    @property
    def events_fd(self) -> int:
        """Becomes readable when events may have come; read them until there are none, for it tells of changes only."""
        return int(self.events.get(zmq.FD))

    def send(self, command: Command) -> None:
        """Queue a command; never blocks. One for a process that is gone, or not yet there, is dropped."""
        if not self._closed:
            # A PUSH socket takes any number of messages for a peer (there is no limit), and none without one.
            with contextlib.suppress(zmq.Again):
                self.commands.send(self._encoder.encode(command), zmq.NOBLOCK)
                self._sent += 1

    def receive(self) -> Event | None:
        """The next event if there is one; never blocks."""
        try:
            event: Event = self._decoder.decode(self.events.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None
        return event

    def check(self) -> EngineDeadError | None:
        """Kill the process if it has hung; the error for that. To be called every `heartbeat.CHECK_SECONDS`."""
        beat = self._pulse.read()
        if not self._watch.is_hung(beat, self._sent):
            return None
        self.kill()
        what = "a step took" if beat.due_ns else "it left a request unread for"
        rest = " and ten times as long as steps of its size do" if beat.due_ns else ""
        return EngineDeadError(
            f"the engine process hung and was killed: {what} more than {self._step_timeout:g} s{rest}; "
            "where that is no fault, raise --step-timeout"
        )

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the process's end; whether it has come."""
        self._waiter.join(seconds)
        return not self._waiter.is_alive()

    def close(self, patience: float = KILL_SECONDS) -> None:
        """Kill the process if it runs, and free everything, within `patience` seconds. May be called again."""
        if self._closed:
            return
        self._closed = True
        self.kill()
        if not self.wait(patience):
            logger.error("the engine process %d is killed but not gone; its memory may still be in use", self.pid)
        self._lifeline.close()
        self._pulse.close()
        self._give_back()

    def _give_back(self) -> None:
        os.close(self.ended_fd)
        self._context.destroy(linger=0)
        self._folder.remove()

    def death(self) -> EngineDeadError:
        """The error for a process that has ended without a word; StandbyDeadError where it never read what to be."""
        if self._untold:
            return StandbyDeadError(self.pid, self.exit_code)
        return EngineDeadError(f"the engine process {exit_text(self.exit_code)}")

    @property
    def owes_a_reason(self) -> bool:
        """Whether it ended with the code of an error, whose message must then be on its way."""
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
        """From now on its process, control socket and page are ours."""
        self._process, self._lifeline = standby.process, standby.lifeline.socket
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
            log_level=logging.getLogger().getEffectiveLevel(),
            has_image=image is not None,
            grant=grant,
        )

    def _wait(self) -> None:
        self._process.wait()
        with contextlib.suppress(OSError):  # it is closed where the process outlived `close`
            # The kernel says so of a peer that leaves something unread.
            self._untold = self._lifeline.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
        os.close(self._ending_fd)


def failure(event: EngineFailed) -> PlimsollError:
    """The error that the engine ended with, of the class that it had there."""
    return error_of(event.kind, event.message, device_lost=event.device_lost)
