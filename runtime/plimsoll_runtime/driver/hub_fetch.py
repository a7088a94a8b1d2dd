"""Fetches a snapshot of a hub in a separate process, which can be cancelled.

The hub's library cannot be stopped: its threads, some of them outside of Python, read to the end of a file. A process
ends immediately, and its memory is freed with it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Protocol

import msgspec

from plimsoll_runtime.driver.process.exit_errors import error_of, exit_text
from plimsoll_runtime.engine.protocol.messages import ProcessFailed
from plimsoll_runtime.errors import FetchError, SourceError
from plimsoll_runtime.execution.memory.system import footprint
from plimsoll_runtime.weights.sources.hub import Access

END_SECONDS = 5.0
"""Time for a cancelled process to clean up and end."""
AGAIN_SECONDS = 0.2
"""Interval between attempts to start while the fetch limit is reached."""


class FetchRequest(msgspec.Struct, frozen=True):
    """The line that the process reads from standard input: the arguments of `weights.sources.hub.fetch_snapshot`."""

    model_id: str
    revision: str | None
    access: Access | None
    file: str | None = None


class Fetched(msgspec.Struct, frozen=True, tag="fetched"):
    """The result of a fetch: the snapshot's folder, or the requested file of it."""

    path: str


Answer = Fetched | ProcessFailed


class FetchLimit(Protocol):
    """Limits the number of concurrent fetches."""

    def enter(self, fetch: HubFetch) -> bool:
        """Count the fetch and return True if it may start, else False."""

    def leave(self, fetch: HubFetch) -> None:
        """Record the end of a fetch that had started."""


class HubFetch:
    """One fetch. It is called in a thread, and can be cancelled from any thread. `room`: a limit on concurrent fetches;
    the call waits until it may start.
    """

    def __init__(self, room: FetchLimit | None = None) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._called_off = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, model_id: str, revision: str | None, access: Access | None, file: str | None = None) -> Path:
        """Same contract as `weights.sources.hub.fetch_snapshot`. Raises SourceError, also if it is cancelled."""
        wanted = FetchRequest(model_id, revision, access, file)
        if self._room is None:
            return self._fetch(wanted)
        while not self._room.enter(self):
            if self._called_off.wait(AGAIN_SECONDS):
                raise _called_off(wanted)
        try:
            return self._fetch(wanted)
        finally:
            self._room.leave(self)

    def call_off(self) -> None:
        """Cancel the fetch within `END_SECONDS`. Complete files are kept for the next fetch. May be called at any
        time.
        """
        with self._lock:
            self._called_off.set()
            if self._process is None:
                return
            assert self._process.stdin is not None
            self._process.stdin.close()
            killing = threading.Timer(END_SECONDS, self._process.kill)
        killing.daemon = True
        killing.start()

    @property
    def anonymous(self) -> int:
        """Bytes of private memory of the process; 0 without one."""
        with self._lock:
            process = self._process
        if process is not None:
            with contextlib.suppress(OSError):  # it has just ended
                return footprint(process.pid).anonymous
        return 0

    def _fetch(self, wanted: FetchRequest) -> Path:
        process = self._begin(wanted)
        answer = _answer(process)
        code = self._ended(process)
        if self._called_off.is_set():
            raise _called_off(wanted)
        if answer is None:
            how = exit_text(code)
            raise FetchError(f"cannot fetch hf://{wanted.model_id}: the fetching process {how}")
        if isinstance(answer, ProcessFailed):
            raise error_of(answer)
        return Path(answer.path)

    def _begin(self, wanted: FetchRequest) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "plimsoll_runtime.driver.hub_fetch_process"]
        with self._lock:
            if self._called_off.is_set():
                raise _called_off(wanted)
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, process_group=0
                )
            except OSError as error:
                raise SourceError(f"cannot fetch hf://{wanted.model_id}: cannot start a process: {error}") from error
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended and will not answer
                process.stdin.write(msgspec.json.encode(wanted) + b"\n")
            self._process = process
        return process

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a process that has answered, and return its exit code."""
        try:
            code = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        with self._lock:
            self._process = None
            assert process.stdin is not None
            process.stdin.close()
        return code


def _called_off(wanted: FetchRequest) -> SourceError:
    return SourceError(f"the fetch of hf://{wanted.model_id} was cancelled")


def _answer(process: subprocess.Popen[bytes]) -> Answer | None:
    """Read the process's answer; None if it ended without one."""
    assert process.stdout is not None
    with process.stdout:
        told = process.stdout.read()
    return msgspec.json.decode(told, type=Answer) if told.endswith(b"\n") else None
