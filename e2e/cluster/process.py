"""A process on record: its id and the moment it began, so that a reused id is never taken for it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Process:
    """`started` is field 22 of /proc/PID/stat: clock ticks since boot, kept over exec."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        try:
            now = parse_stat(Path(f"/proc/{self.pid}/stat").read_text())
        except (FileNotFoundError, ProcessLookupError):
            return False
        return now == self

    def __str__(self) -> str:
        return f"{self.pid}@{self.started}"

    def only_child(self) -> int | None:
        """Process id of its child, or None while it has none."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return int(children[0]) if children else None

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has taken it apart. Raises ClusterError if it stays."""
        deadline = time.monotonic() + STOP_SECONDS
        while self.alive:
            if time.monotonic() > deadline:
                raise ClusterError(f"process {self.pid} is still there {STOP_SECONDS:.0f} s after SIGKILL")
            try:
                os.kill(self.pid, signal.SIGKILL)
                reap(self.pid)
            except ProcessLookupError:
                return
            time.sleep(0.02)


def reap(pid: int) -> None:
    """Collect the exit status if the process is our own child; somebody else's is left to its parent."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def parse_stat(line: str) -> Process:
    """Read a line of /proc/PID/stat. The name in brackets may itself hold brackets and spaces.

    Raises ValueError for anything else.
    """
    head, _, rest = line.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = rest.split()
    if not name or len(fields) < 20:
        raise ValueError(f"not a line of /proc/PID/stat: {line!r}")
    return Process(pid=int(pid), started=int(fields[19]))


def read_record(path: Path) -> Process | None:
    """The process on record in a file, or None where there is no record."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    return parse_stat(text) if text.strip() else None


# The launcher writes its own line of /proc before it becomes the command. So the record exists from the first
# moment, whatever happens to the process that started it.
LAUNCHER = 'read -r stat < /proc/$$/stat && printf "%s\\n" "$stat" > "$0" && exec "$@"'


def recorded(record: Path, argv: list[str]) -> list[str]:
    """A command line that writes the record, then becomes `argv` under the same process id."""
    return ["sh", "-c", LAUNCHER, str(record), *argv]
