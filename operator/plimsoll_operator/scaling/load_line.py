"""A replica's load line: the number of requests at a time that it serves within the targets.

The slots of a batch and the cache share of a request give a line in advance. The line that latency allows is learned: a
load that misses a target lowers it; this is gradually forgotten, and a load that meets the targets raises it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll_operator.scaling.facts import Facts
from plimsoll_operator.spec.scaling import Target

UNKNOWN_SLOTS = 64
"""Assumed slots of a replica that has not reported them."""
LEAST_KV = 0.2
"""Below this share, a cache's use does not predict how many requests would fill it."""
WORST = 1.5
"""A missed latency lowers the line to at least the load divided by this."""
FORGET_SECONDS = 4 * 3600.0
"""Seconds in which a line drawn by a miss doubles again."""
MOST_DOUBLINGS = 64.0
"""The most doublings, to prevent a float overflow after 1024 of them (170 days)."""
DRAW_SECONDS = 60.0
"""Seconds between two misses that draw a line, because figures are means of a minute. Misses while replicas change draw
none.
"""
ALONE = 1.0
"""With less than one request at a time, latency does not depend on load."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A missed target as text, and the line that it draws."""

    why: str
    load_line: float


@dataclass(frozen=True, slots=True)
class LoadLine:
    """The learned part of a load line, in requests at a time of one replica.

    `missed`: the line that the last miss drew, at time `at`; None before the first. `carried`: the highest load since
    then with which all targets were met.
    """

    missed: float | None = None
    at: float = 0.0
    carried: float = 0.0

    def learned(self, target: Target, facts: Facts) -> LoadLine:
        """Return the line that these facts lead to: a miss draws a lower one, a load that meets all targets may raise
        `carried`.
        """
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
        """Return the requests at a time that a replica serves within the targets, at least one."""
        known = [_by_batch(target, facts)]
        if (by_cache := _by_cache(target, facts)) is not None:
            known.append(by_cache)
        if self.missed is not None:
            age = max(0.0, facts.now - self.at)
            known.append(max(self.carried, self.missed * 2.0 ** min(MOST_DOUBLINGS, age / FORGET_SECONDS)))
        return max(ALONE, min(known))


def miss(target: Target, facts: Facts) -> Miss | None:
    """Return the missed target that draws the lowest line; None if all are met or load is not the cause."""
    return min(_misses(target, facts), key=lambda found: found.load_line, default=None)


def alone(target: Target, facts: Facts) -> str:
    """Return which latency target is missed although load is not the cause, as text; "" if none."""
    if facts.carried is None or facts.carried >= ALONE:
        return ""
    for name, measured, wanted in _latencies(target, facts):
        if measured > wanted:
            return (
                f"{name} is {_time(measured)} at {facts.carried:.1f} requests a replica, above the target of "
                f"{_time(wanted)}: more replicas do not help"
            )
    return ""


def _misses(target: Target, facts: Facts) -> list[Miss]:
    load, found = facts.carried, []
    if load is None or not facts.ready:
        return []
    if target.queue is not None and facts.waiting > target.queue:
        why = f"{facts.waiting:.1f} requests wait at each replica, and the target is {target.queue}"
        found.append(Miss(why, max(ALONE, load + target.queue)))
    if target.kv is not None and facts.kv is not None and facts.kv > target.kv:
        why = f"{facts.kv:.0%} of a KV cache are in use, and the target is {target.kv:.0%}"
        found.append(Miss(why, max(ALONE, load * target.kv / facts.kv)))
    for name, measured, wanted in _latencies(target, facts):
        if measured > wanted and load >= ALONE:
            over = 1.0 if facts.waiting >= 1.0 else min(WORST, math.sqrt(measured / wanted))
            why = f"{name} is {_time(measured)}, and the target is {_time(wanted)}"
            found.append(Miss(why, max(ALONE, load / over)))
    return found


def _latencies(target: Target, facts: Facts) -> list[tuple[str, float, float]]:
    """Return the name, the measured 95th percentile and the target of each known latency."""
    pairs = (("time to first token", facts.ttft, target.ttft), ("time between tokens", facts.itl, target.itl))
    return [(name, measured, wanted) for name, measured, wanted in pairs if measured is not None and wanted is not None]


def _by_batch(target: Target, facts: Facts) -> float:
    return (facts.slots or UNKNOWN_SLOTS) + float(target.queue or 0)


def _by_cache(target: Target, facts: Facts) -> float | None:
    if target.kv is None or facts.kv is None or facts.kv < LEAST_KV or not facts.carried:
        return None
    return facts.carried * target.kv / facts.kv


def _was_measured(target: Target, facts: Facts) -> bool:
    """Return whether all latency targets have been measured; a missing figure does not mean that a target is met."""
    return (target.ttft is None or facts.ttft is not None) and (target.itl is None or facts.itl is not None)


def _time(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
