"""Fetches a snapshot of a hub in a process of its own, for whoever may call it off.

The hub's library cannot be told to stop: its threads, some of them not Python's, read on to the end of a file. A
process ends at once, and takes with it the memory that fetching took.
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
from plimsoll_runtime.errors import FetchError, SourceError
from plimsoll_runtime.execution.memory.system import footprint
from plimsoll_runtime.weights.sources.hub import Access

END_SECONDS = 5.0
"""How long a process that was called off may take to tidy up and end."""
AGAIN_SECONDS = 0.2
"""Between two looks whether there is room."""


class FetchRequest(msgspec.Struct, frozen=True):
    """What the process is told on its standard input: the arguments of `weights.sources.hub.fetch_snapshot`."""

    model_id: str
    revision: str | None
    namespace: str | None
    token: str = ""
    file: str | None = None

    @property
    def access(self) -> Access | None:
        """What it is fetched with."""
        return None if self.namespace is None else Access(self.namespace, self.token)


class Fetched(msgspec.Struct, frozen=True, tag="fetched"):
    """The snapshot's folder, or the file of it that is wanted."""

    path: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """What a SourceError says; `kind` is the value of its ErrorKind."""

    kind: str
    message: str


Answer = Fetched | Failed


class FetchLimit(Protocol):
    """Bounds how many fetches are under way."""

    def enter(self, fetch: HubFetch) -> bool:
        """Whether it may begin now."""

    def leave(self, fetch: HubFetch) -> None:
        """It was let in and has ended."""


class HubFetch:
    """One fetch. It is called in a thread, and called off from any. With a `room` it waits until it is let in."""

    def __init__(self, room: FetchLimit | None = None) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._called_off = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, model_id: str, revision: str | None, access: Access | None, file: str | None = None) -> Path:
        """As `weights.sources.hub.fetch_snapshot` has it. Raises SourceError, also where it is called off."""
        namespace, token = (None, "") if access is None else (access.namespace, access.token)
        wanted = FetchRequest(model_id, revision, namespace, token, file)
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
        """End it within `END_SECONDS`. Files that are whole are kept for the next fetch. May be called at any time."""
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
        """Bytes of memory that the process has of its own now; 0 without one."""
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
            raise FetchError(f"hf://{wanted.model_id} cannot be fetched: the process that fetches it {how}")
        if isinstance(answer, Failed):
            raise error_of(answer.kind, answer.message)
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
                raise SourceError(
                    f"hf://{wanted.model_id} cannot be fetched: no process can be started: {error}"
                ) from error
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended: it will not answer either
                process.stdin.write(msgspec.json.encode(wanted) + b"\n")
            self._process = process
        return process

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of one that has said all that it says; how it ended."""
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
    return SourceError(f"the fetch of hf://{wanted.model_id} was called off")


def _answer(process: subprocess.Popen[bytes]) -> Answer | None:
    """What it says; None where it ends without a word."""
    assert process.stdout is not None
    with process.stdout:
        told = process.stdout.read()
    return msgspec.json.decode(told, type=Answer) if told.endswith(b"\n") else None
