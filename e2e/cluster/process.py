"""A recorded process: its id and start time, so that a reused id is never mistaken for it."""

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
    """`started` is field 22 of /proc/PID/stat: clock ticks since boot, unchanged by exec."""

    pid: int
    started: int

    def __str__(self) -> str:
        return f"{self.pid}@{self.started}"

    @property
    def alive(self) -> bool:
        """Whether the process runs. A zombie does not count."""
        return find_process(self.pid) == self

    def children(self) -> list[Process]:
        """Return its children without zombies."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return []
        return [*filter(None, (find_process(int(child)) for child in children))]

    def only_child(self) -> Process | None:
        """Return its first child that is not a zombie, or None."""
        return next(iter(self.children()), None)

    def inner_pid(self) -> int | None:
        """Return its id in its innermost process namespace, or None if it has ended."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return next(int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:"))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Raises ClusterError if the process has ended, because another process may have its id."""
        if not self.alive:
            raise ClusterError(f"process {self.pid} has ended: no {number.name} for it")
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process, and wait until it and its child (which ends with it) are gone. Raises ClusterError if they
        stay.
        """
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
    """Return the process with this id, or None if there is none or it is a zombie."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state(line) in "ZX" else parse_stat(line)


def state(line: str) -> str:
    """Return the letter of the state in a line of /proc/PID/stat."""
    return line.rpartition(")")[2].split()[0]


def parse_stat(line: str) -> Process:
    """Parse a line of /proc/PID/stat. The name in brackets may contain brackets and spaces. Raises ValueError for other
    texts.
    """
    head, _, rest = line.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = rest.split()
    if not name or len(fields) < 20:
        raise ValueError(f"not a line of /proc/PID/stat: {line!r}")
    return Process(pid=int(pid), started=int(fields[19]))


def read_record(path: Path) -> Process | None:
    """Return the process recorded in a file, which may have ended; None if the file is missing or empty."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    return parse_stat(text) if text.strip() else None


# The launcher writes its own line of /proc before it executes the command. So the record exists from the start,
# whatever happens to the parent process.
LAUNCHER = 'read -r stat < /proc/$$/stat && printf "%s\\n" "$stat" > "$0" && exec "$@"'


def recorded(record: Path, argv: list[str]) -> list[str]:
    """Return a command line that writes the record, then executes `argv` under the same process id."""
    return ["sh", "-c", LAUNCHER, str(record), *argv]
