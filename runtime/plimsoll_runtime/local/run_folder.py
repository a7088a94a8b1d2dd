"""The folder through which other commands find a laptop run: `${XDG_STATE_HOME:-~/.local/state}/plimsoll/PORT/`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plimsoll_kernels.whole_file import write_whole
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.processes.host_client import HostAccess


def state_root() -> Path:
    """Return the folder with the state of all runs of this user."""
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
    return base / "plimsoll"


def write_atomically(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a JSON file; readers see either the old or the new content."""
    write_whole(path, json.dumps(document, indent=2).encode())


class RunFolder:
    """The folder of one run: its record `up.json`, the gateway's routing table, the logs, and folders for claims.

    A running process holds a lock on it, which the kernel releases however the process ends. A record without a lock is
    stale, even if another process has its id.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.folder = state_root() / str(port)
        self.table = self.folder / "table.json"
        self.models = self.folder / "models.yaml"
        self.claims = self.folder / "claims"
        self.host_access = HostAccess(self.folder)
        self._record = self.folder / "up.json"
        self._lock = self.folder / "lock"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock of this port and remove old logs. Raises UsageError if another run holds it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"a `plimsoll up` on port {self.port} is running; stop it with `plimsoll down --port "
                    f"{self.port}`, or choose another port with --port"
                ) from None
            for old in (*self.folder.glob("*.log"), *self.folder.glob("*.findings")):
                old.unlink()
            try:
                yield
            finally:
                self._record.unlink(missing_ok=True)
                for path in (self.table, self.models):
                    path.unlink(missing_ok=True)
                self.host_access.take_back()

    def is_running(self) -> bool:
        """Return whether a process holds the lock."""
        try:
            with self._lock.open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def write(self, record: Mapping[str, Any]) -> None:
        """Write the record."""
        write_atomically(self._record, record)

    def read(self) -> dict[str, Any] | None:
        """Return the record of a running process, else None."""
        if not self.is_running():
            return None
        try:
            record: dict[str, Any] = json.loads(self._record.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None  # it is just starting or ending
        return record

    def log(self, slot: str) -> Path:
        """Return the path of a process's log."""
        return self.folder / f"{slot}.log"

    def last_words(self, slot: str) -> Path:
        """Return the path of the file in which a process writes its last error."""
        return self.folder / f"{slot}.reason"

    def findings(self, slot: str) -> Path:
        """Return the path of the file in which a process writes findings about its device, one per line."""
        return self.folder / f"{slot}.findings"


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file, or [] if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


def all_runs() -> list[RunFolder]:
    """Return the folders of all running `plimsoll up`, sorted by port."""
    root = state_root()
    ports = sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdigit()) if root.is_dir() else []
    return [run for run in map(RunFolder, ports) if run.is_running()]
