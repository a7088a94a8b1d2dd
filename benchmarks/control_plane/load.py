"""CPU time and memory of processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds that processes have used so far, by name."""

    seconds: Mapping[str, float]

    def until(self, later: Usage) -> dict[str, float]:
        """Return the seconds used between this reading and a later one."""
        return {name: round(later.seconds[name] - used, 2) for name, used in self.seconds.items()}


def usage(pids: Mapping[str, int]) -> Usage:
    """Return the CPU seconds (user and system) that processes have used so far, by name."""
    return Usage({name: sum(psutil.Process(pid).cpu_times()[:2]) for name, pid in pids.items()})


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return round(psutil.Process(pid).memory_info().rss / MIB, 1)


def peak_mib(pid: int) -> float:
    """Return the peak memory of a process in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return round(kib / 1024, 1)
