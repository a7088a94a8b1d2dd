"""The phases of a request, in one process: they follow each other without gaps, so they add up to its time."""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple


class Phase(NamedTuple):
    """A phase, in nanoseconds of the monotonic clock."""

    name: str
    start_ns: int
    end_ns: int


class Phases:
    """Records where each phase of a request ends. A phase lasts from the previous mark to its own."""

    __slots__ = ("_marks", "began_ns")

    def __init__(self, began_ns: int | None = None) -> None:
        self.began_ns = time.monotonic_ns() if began_ns is None else began_ns
        self._marks: list[tuple[str, int]] = []

    @property
    def last_ns(self) -> int:
        """When the last recorded phase ended, or when the request began."""
        return self._marks[-1][1] if self._marks else self.began_ns

    def end(self, name: str) -> int:
        """Record that phase `name` ends now; return the time in nanoseconds."""
        now = time.monotonic_ns()
        self._marks.append((name, now))
        return now

    def all(self) -> list[Phase]:
        """Return the phases in order. Neighbours with the same name are one phase."""
        phases: list[Phase] = []
        start = self.began_ns
        for name, end in self._marks:
            if phases and phases[-1].name == name:
                phases[-1] = phases[-1]._replace(end_ns=end)
            else:
                phases.append(Phase(name, start, end))
            start = end
        return phases

    def seconds(self) -> dict[str, float]:
        """Return the time of all phases with the same name, by name."""
        nanoseconds: Counter[str] = Counter()
        for phase in self.all():
            nanoseconds[phase.name] += phase.end_ns - phase.start_ns
        return {name: ns / 1e9 for name, ns in nanoseconds.items()}
