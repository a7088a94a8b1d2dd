"""The scaling rule: computes how many replicas a model needs, with a reason. A pure function.

The need is the rate that is expected when a replica created now would serve, times the seconds of a request, in
requests at a time (Little's law). A margin of its square root covers variance (the square-root rule of Halfin and
Whitt, 1981). Waiting requests should be served within half a minute. The sum is divided by the load line of a replica
(load_line.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from plimsoll_operator.scaling.facts import Facts
from plimsoll_operator.scaling.load_line import LoadLine, alone, miss
from plimsoll_operator.scaling.stabilization import Extremes
from plimsoll_operator.spec.scaling import Scaling

MARGIN = 0.5
"""The margin, in square roots of the requests at a time."""
CATCH_UP_SECONDS = 30.0
"""Seconds in which waiting requests should be served."""
TOLERANCE = 0.1
"""Relative differences of the need that change nothing; scaling down needs as much to spare."""
FACTOR, STEP = 2, 4
"""One change allows this many times as many replicas, or this many more, whichever is greater."""


class Why(Enum):
    """Why a number of replicas is wanted."""

    SAME = "same"
    BOUNDS = "bounds"
    HELD = "held"
    LOAD = "load"
    IDLE = "idle"
    FIRST = "first"


@dataclass(frozen=True, slots=True)
class DesiredReplicas:
    """The wanted replicas; `words` is the reason as text. `trouble`: what prevents a better decision, "" for
    nothing.
    """

    replicas: int
    why: Why
    words: str
    trouble: str = ""


def decide(
    scaling: Scaling, desired: int | None, facts: Facts, load_line: LoadLine, said: Extremes, began: float
) -> DesiredReplicas:
    """Return how many replicas are wanted, for a model of which `desired` are wanted so far (None: it is new).

    `said` has the recent results of `needed`; `began` is when this process first decided on the model.
    """
    if desired is None:
        first = scaling.clamped(1)
        return DesiredReplicas(first, Why.FIRST, f"a new model starts with {_replicas(first)}")
    if desired != scaling.clamped(desired):
        bounds = f"spec.scaling allows {scaling.floor} to {scaling.most}"
        return DesiredReplicas(scaling.clamped(desired), Why.BOUNDS, bounds)
    if desired == 0:
        return _from_zero(scaling, facts, load_line)
    load = needed(scaling, desired, facts, load_line)
    wanted = min(load.replicas, said.least(facts.now - scaling.up)) if facts.now - began >= scaling.up else desired
    if wanted > desired:
        return DesiredReplicas(min(wanted, max(FACTOR * desired, desired + STEP)), Why.LOAD, load.words, load.trouble)
    return _fewer(scaling, desired, facts, load, said, began)


def needed(scaling: Scaling, desired: int, facts: Facts, load_line: LoadLine) -> DesiredReplicas:
    """Return the replicas that the present load needs, without regard to earlier loads: at least one, and within the
    bounds of `scaling`. A need close to `desired` returns `desired`.
    """
    height = load_line.height(scaling.target, facts)
    steady = max(facts.in_flight - facts.backlog, facts.expected * (facts.seconds or 0.0))
    waiting = facts.backlog
    if facts.seconds is not None:
        waiting *= min(1.0, facts.seconds / CATCH_UP_SECONDS)
    at_a_time = steady + waiting
    need = (at_a_time + MARGIN * math.sqrt(at_a_time)) / height
    wanted = math.ceil(need - TOLERANCE * desired) if need > desired else math.ceil(need * (1 + TOLERANCE))
    wanted = max(wanted, desired) if need > desired else min(wanted, desired)
    words = f"{at_a_time:.1f} requests at a time are expected, and a replica serves {height:.1f}"
    missed = miss(scaling.target, facts)
    if missed is not None:
        words = f"{missed.why}; {words}"
    bounded = min(scaling.most, max(1, scaling.floor, wanted))
    trouble = missing_demand(facts) or alone(scaling.target, facts)
    if wanted > scaling.most:
        trouble = trouble or f"{wanted} replicas are needed, and maxReplicas is {scaling.most}"
    return DesiredReplicas(bounded, Why.LOAD, words, trouble)


def missing_demand(facts: Facts) -> str:
    """Return why a model's demand is unknown, as text; "" while the last report of each gateway counts."""
    return facts.unheard if facts.since >= facts.now else ""


def _from_zero(scaling: Scaling, facts: Facts, load_line: LoadLine) -> DesiredReplicas:
    """Return the wanted replicas of a model that has none: for held requests, at least one; without them, one for a new
    revision, to test whether it loads, unless that failed; else none.
    """
    if not facts.held and not facts.loading.loaded and not facts.loading.failed:
        return DesiredReplicas(1, Why.FIRST, "its spec has changed: one replica shows whether it loads")
    if not facts.held:
        return DesiredReplicas(0, Why.SAME, "", missing_demand(facts))
    wanted = math.ceil(facts.held / load_line.height(scaling.target, facts))
    words = f"{facts.held} request{'s wait' if facts.held > 1 else ' waits'} for a replica"
    return DesiredReplicas(min(scaling.most, STEP, max(1, wanted)), Why.HELD, words, missing_demand(facts))


def _fewer(
    scaling: Scaling, desired: int, facts: Facts, load: DesiredReplicas, said: Extremes, began: float
) -> DesiredReplicas:
    """Return fewer replicas than `desired` if they have sufficed for long enough, no request is held and no gateway's
    report is missing; else `desired`.

    Scale to zero only if no replica is still loading within its startup deadline, and if the model has been idle for
    long enough since the first replica became ready.
    """
    same = DesiredReplicas(desired, Why.SAME, "", load.trouble)
    if facts.unheard or facts.held:
        return same
    watched = facts.now - max(facts.since, began)
    idle = facts.now - max(facts.asked, facts.since, began, facts.loading.served)
    settled = facts.now >= facts.loading.until
    if scaling.floor == 0 and settled and not facts.in_flight and idle >= scaling.idle:
        words = f"no requests for {idle:.0f} s"
        return DesiredReplicas(
            0, Why.IDLE, words if facts.loading.loaded else f"it has not loaded in time, and {words}"
        )
    most = max(load.replicas, said.most(facts.now - scaling.down))
    if most < desired and watched >= scaling.down:
        return DesiredReplicas(
            most, Why.LOAD, f"{load.words}, and fewer have sufficed for {scaling.down} s", load.trouble
        )
    return same


def _replicas(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"
