"""What processes take of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds that processes have used until now, by their names."""

    seconds: Mapping[str, float]

    def until(self, later: Usage) -> dict[str, float]:
        """What they used between this and a later reading."""
        return {name: round(later.seconds[name] - used, 2) for name, used in self.seconds.items()}


def usage(pids: Mapping[str, int]) -> Usage:
    """Read now."""
    return Usage({name: sum(psutil.Process(pid).cpu_times()[:2]) for name, pid in pids.items()})


def resident_mib(pid: int) -> float:
    """Memory of a process."""
    return round(psutil.Process(pid).memory_info().rss / MIB, 1)


def peak_mib(pid: int) -> float:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return round(kib / 1024, 1)
