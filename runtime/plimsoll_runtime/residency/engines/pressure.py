"""How short memory is, from what the kernel says: bytes that are left, and the share of time that work waits for them.

Pressure stall information (PSI) is the cgroup's own (version 2) where there is any, else the machine's; without either,
what is left decides alone. On an accelerator there are no stalls: there too what is left decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from plimsoll_runtime.execution.memory.system import OWN, ROOT, cgroup_left, memberships
from plimsoll_runtime.residency.planner.view import Pressure

MACHINE = Path("/proc/pressure/memory")
SOME_STALLS, FULL_STALLS = 10.0, 5.0
"""Percent of the last ten seconds in which some work waited for memory, and in which all of it did."""
LEAST_MARGIN = 20
"""A twentieth of the capacity should be left at least, however high the line is."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """Percent of the last ten seconds in which some, and all, work waited for memory."""

    some: float
    full: float


def host_memory_left(root: Path = ROOT, own: Path = OWN) -> int:
    """Bytes that this process may still take: of the machine's, or of its cgroup's limit where that is less.

    All pages of files are left, mapped or not: which pod of a node has them in its cgroup is chance, most of a library
    is read once, while it is linked, and where the kernel takes what is in use that shows as stalls.
    """
    free = int(psutil.virtual_memory().available)
    left = cgroup_left(root, own, mapped=True)
    return free if left is None else min(free, left)


def read_stalls(root: Path = ROOT, own: Path = OWN, machine: Path = MACHINE) -> Stalls | None:
    """Of the process's cgroup, else of the machine; None where the kernel tells neither."""
    for path in (_own_cgroup(root, own) / "memory.pressure", root / "memory.pressure", machine):
        if (found := _parse(path)) is not None:
            return found
    return None


def judge(left: int, capacity: int, line: int, stalls: Stalls | None) -> Pressure:
    """From bytes that are left of a device's capacity, of which what lies above the line is to stay free.

    Half of that gone is some pressure, three quarters full pressure, whatever the ledgers say; so are stalls.
    """
    margin = max(capacity - line, capacity // LEAST_MARGIN)
    if left < margin // 4 or (stalls is not None and stalls.full >= FULL_STALLS):
        return Pressure.FULL
    if left < margin // 2 or (stalls is not None and stalls.some >= SOME_STALLS):
        return Pressure.SOME
    return Pressure.NONE


def _own_cgroup(root: Path, own: Path) -> Path:
    """Of version 2. In a container its path is often the host's, which does not exist inside."""
    path = next((path for controllers, path in memberships(own) if controllers == ""), "")
    return root / path.lstrip("/")


def _parse(path: Path) -> Stalls | None:
    """`some avg10=0.12 avg60=... total=...` and the same for `full`; None for a file that is not there or says less."""
    try:
        rows = [row.split() for row in path.read_text().splitlines()]
    except OSError:
        return None
    found: dict[str, float] = {}
    for kind, *fields in (row for row in rows if row):
        for field in fields:
            name, _, value = field.partition("=")
            if name == "avg10" and value.replace(".", "", 1).isdigit():
                found[kind] = float(value)
    return Stalls(found["some"], found["full"]) if found.keys() >= {"some", "full"} else None
