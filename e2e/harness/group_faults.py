"""Watches the pods of groups for states that must never exist."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from harness.groups import Member, live
from harness.kube import Kube
from harness.sampling import sampled


def faults(members: Sequence[Member]) -> list[str]:
    """Return descriptions of members that exist twice, and of groups whose pods have different hashes. Terminating pods
    do not count.
    """
    here = [member for member in members if not member.stopping]
    counts = Counter((member.group, member.index) for member in here)
    hashes = {group: sorted({member.hash for member in here if member.group == group}) for group, _ in counts}
    return [
        *(f"group {group} has {count} pods of index {index}" for (group, index), count in counts.items() if count > 1),
        *(f"group {group} has pods of the hashes {', '.join(found)}" for group, found in hashes.items() if found[1:]),
    ]


@contextlib.contextmanager
def watched(kube: Kube, name: str) -> Iterator[set[str]]:
    """Sample the pods of a model within the context, and yield the set of faults seen so far."""
    seen: set[str] = set()
    with sampled(lambda: seen.update(faults(live(kube, name)))):
        yield seen


class Holds:
    """Measures how long groups have pods without being ready. `longest`: name of a model with one group -> seconds."""

    def __init__(
        self, kube: Kube, names: Sequence[str], pods: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`pods`: number of pods of each group."""
        self._kube = kube
        self._names = names
        self._pods = pods
        self._clock = clock
        self._since: dict[str, float] = {}
        self.longest: dict[str, float] = dict.fromkeys(names, 0.0)

    def look(self) -> None:
        """Take a sample."""
        for name in self._names:
            found = live(self._kube, name)
            if not found or sum(member.ready for member in found) == self._pods:
                self._since.pop(name, None)
                continue
            now = self._clock()
            held = now - self._since.setdefault(name, now)
            self.longest[name] = max(self.longest[name], round(held, 1))
