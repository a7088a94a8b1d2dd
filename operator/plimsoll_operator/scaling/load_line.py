"""A replica's load line: how many requests at a time it carries within the targets, as far as that has been seen.

Places of a batch and the share of the cache that a request takes tell it before anything goes wrong. What latency
a load costs is only seen: a load at which a target was missed lowers the line, and is forgotten by and by; one that
was carried raises it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll_operator.scaling.facts import Facts
from plimsoll_operator.spec.scaling import Target

UNKNOWN_SLOTS = 64
"""Places of a batch of a replica that has not told."""
LEAST_KV = 0.2
"""A cache that is emptier tells nothing of how many requests would fill it."""
WORST = 1.5
"""A line is at most so many times lower than the load at which a latency was missed."""
FORGET_SECONDS = 4 * 3600.0
"""In this time a line that a miss has drawn rises to twice of what it was."""
MOST_DOUBLINGS = 64.0
"""A line is forgotten by then; a float overflows after 1024 of them, which are 170 days."""
DRAW_SECONDS = 60.0
"""Between two misses that draw a line, as figures are those of a minute. Nor does one while replicas come or go."""
ALONE = 1.0
"""With less than one request at a time, latency is not a matter of load."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A target that is not kept, in words, and the line that it draws."""

    why: str
    load_line: float


@dataclass(frozen=True, slots=True)
class LoadLine:
    """`missed`: the line that the last miss drew, at `at`. `carried`: the most that was carried since, in full."""

    missed: float | None = None
    at: float = 0.0
    carried: float = 0.0

    def learned(self, target: Target, facts: Facts) -> LoadLine:
        """With what is seen now."""
        found = miss(target, facts)
        if found is not None:
            young = self.missed is not None and facts.now - self.at < DRAW_SECONDS
            if young or not facts.steady or found.load_line >= self.height(target, facts):
                return self
            return LoadLine(found.load_line, facts.now, 0.0)
        if facts.carried is None or self.missed is None or not _was_measured(target, facts):
            return self
        return LoadLine(self.missed, self.at, max(self.carried, facts.carried + facts.waiting))

    def height(self, target: Target, facts: Facts) -> float:
        """Requests at a time that a replica carries: one at the least."""
        known = [_by_batch(target, facts)]
        if (by_cache := _by_cache(target, facts)) is not None:
            known.append(by_cache)
        if self.missed is not None:
            age = max(0.0, facts.now - self.at)
            known.append(max(self.carried, self.missed * 2.0 ** min(MOST_DOUBLINGS, age / FORGET_SECONDS)))
        return max(ALONE, min(known))


def miss(target: Target, facts: Facts) -> Miss | None:
    """The worst target that is missed now, None where all are kept or load is no reason."""
    return min(_misses(target, facts), key=lambda found: found.load_line, default=None)


def alone(target: Target, facts: Facts) -> str:
    """Which latency is missed although load is no reason, in words; "" where none is."""
    if facts.carried is None or facts.carried >= ALONE:
        return ""
    for name, measured, wanted in _latencies(target, facts):
        if measured > wanted:
            return (
                f"{name} is {_time(measured)} at {facts.carried:.1f} requests a replica, beyond the target of "
                f"{_time(wanted)}: more replicas do not help"
            )
    return ""


def _misses(target: Target, facts: Facts) -> list[Miss]:
    load, found = facts.carried, []
    if load is None or not facts.ready:
        return []
    if target.queue is not None and facts.waiting > target.queue:
        why = f"{facts.waiting:.1f} requests wait at each replica, and {target.queue} may"
        found.append(Miss(why, max(ALONE, load + target.queue)))
    if target.kv is not None and facts.kv is not None and facts.kv > target.kv:
        why = f"{facts.kv:.0%} of a KV cache are in use, and {target.kv:.0%} may be"
        found.append(Miss(why, max(ALONE, load * target.kv / facts.kv)))
    for name, measured, wanted in _latencies(target, facts):
        if measured > wanted and load >= ALONE:
            over = 1.0 if facts.waiting >= 1.0 else min(WORST, math.sqrt(measured / wanted))
            why = f"{name} is {_time(measured)}, and {_time(wanted)} is the target"
            found.append(Miss(why, max(ALONE, load / over)))
    return found


def _latencies(target: Target, facts: Facts) -> list[tuple[str, float, float]]:
    """Name, what 95 of 100 kept, and the target, of those that are known."""
    pairs = (("time to first token", facts.ttft, target.ttft), ("time between tokens", facts.itl, target.itl))
    return [(name, measured, wanted) for name, measured, wanted in pairs if measured is not None and wanted is not None]


def _by_batch(target: Target, facts: Facts) -> float:
    return (facts.slots or UNKNOWN_SLOTS) + float(target.queue or 0)


def _by_cache(target: Target, facts: Facts) -> float | None:
    if target.kv is None or facts.kv is None or facts.kv < LEAST_KV or not facts.carried:
        return None
    return facts.carried * target.kv / facts.kv


def _was_measured(target: Target, facts: Facts) -> bool:
    """Whether every target that could be missed was looked at: no news of a latency is no good news."""
    return (target.ttft is None or facts.ttft is not None) and (target.itl is None or facts.itl is not None)


def _time(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
