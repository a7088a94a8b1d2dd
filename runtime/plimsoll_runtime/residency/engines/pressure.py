"""Memory pressure by the kernel's measurements: bytes left, and the share of time in which work waits for memory.

Pressure stall information (PSI) is that of the cgroup (version 2) if it has any, else the machine's. Without PSI, and
on an accelerator, the bytes left decide alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from plimsoll_runtime.execution.memory.system import OWN, ROOT, cgroup_left, memberships
from plimsoll_runtime.residency.planner.view import Pressure

MACHINE = Path("/proc/pressure/memory")
SOME_STALLS, FULL_STALLS = 10.0, 5.0
"""Percentages in `Stalls` from which on the pressure is SOME, or FULL."""
LEAST_MARGIN = 20
"""At least 1/20 of the capacity should be left, however high the line is."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """Percent of the last ten seconds in which some, and all, work waited for memory."""

    some: float
    full: float


def host_memory_left(root: Path = ROOT, own: Path = OWN) -> int:
    """Return the bytes that this process may still take: of the machine's memory, or of its cgroup's limit if that is
    less.

    All file pages count as left, mapped or not: which pod of a node has them in its cgroup is chance, most of a library
    is read only once during linking, and if the kernel reclaims used pages, PSI shows it.
    """
    free = int(psutil.virtual_memory().available)
    left = cgroup_left(root, own, mapped=True)
    return free if left is None else min(free, left)


def read_stalls(root: Path = ROOT, own: Path = OWN, machine: Path = MACHINE) -> Stalls | None:
    """Return the stalls of the process's cgroup, else of the machine; None if the kernel reports neither."""
    for path in (_own_cgroup(root, own) / "memory.pressure", root / "memory.pressure", machine):
        if (found := _parse(path)) is not None:
            return found
    return None


def judge(left: int, capacity: int, line: int, stalls: Stalls | None) -> Pressure:
    """Return the pressure on a device with `left` free bytes.

    The margin is the memory above the line, but at least 1/LEAST_MARGIN of the capacity. If less than half of it is
    free, the pressure is SOME; less than a quarter: FULL. Stalls of at least SOME_STALLS or FULL_STALLS percent give
    the same levels, however much is free.
    """
    margin = max(capacity - line, capacity // LEAST_MARGIN)
    if left < margin // 4 or (stalls is not None and stalls.full >= FULL_STALLS):
        return Pressure.FULL
    if left < margin // 2 or (stalls is not None and stalls.some >= SOME_STALLS):
        return Pressure.SOME
    return Pressure.NONE


def _own_cgroup(root: Path, own: Path) -> Path:
    """Return the folder of the process's cgroup (version 2). In a container its path is often the machine's, which does
    not exist inside.
    """
    path = next((path for controllers, path in memberships(own) if controllers == ""), "")
    return root / path.lstrip("/")


def _parse(path: Path) -> Stalls | None:
    """Parse `some avg10=0.12 avg60=... total=...` and the same for `full`; None for a missing or incomplete file."""
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
