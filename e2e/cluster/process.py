"""A process on record: its id and the moment it began, so that a reused id is never taken for it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Process:
    """`started` is field 22 of /proc/PID/stat: clock ticks since boot, kept over exec."""

    pid: int
    started: int

    def __str__(self) -> str:
        return f"{self.pid}@{self.started}"

    @property
    def alive(self) -> bool:
        """A zombie, which only waits for its parent to look, is not."""
        return find_process(self.pid) == self

    def children(self) -> list[Process]:
        """Its children, zombies left out."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return []
        return [*filter(None, (find_process(int(child)) for child in children))]

    def only_child(self) -> Process | None:
        """Its child, or None while it has none."""
        return next(iter(self.children()), None)

    def inner_pid(self) -> int | None:
        """Its id in the innermost process namespace that it is in; None when it has ended."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return next(int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:"))

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal. Raises ClusterError when it has ended: its id may be another's by now."""
        if not self.alive:
            raise ClusterError(f"process {self.pid} has ended: no {number.name} for it")
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, and wait until it and its child (which dies with it) are gone. Raises ClusterError if not."""
        if not self.alive:
            return
        family = [self, *filter(None, [self.only_child()])]
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + STOP_SECONDS
        while any(member.alive for member in family):
            if time.monotonic() > deadline:
                raise ClusterError(f"process {self.pid} is still there {STOP_SECONDS:.0f} s after SIGKILL")
            time.sleep(0.02)


def find_process(pid: int) -> Process | None:
    """The process that has this id now, unless it is a zombie."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state(line) in "ZX" else parse_stat(line)


def state(line: str) -> str:
    """The state's letter in a line of /proc/PID/stat."""
    return line.rpartition(")")[2].split()[0]


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
