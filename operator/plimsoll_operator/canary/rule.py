"""Decides the next state of a canary: wait, next step, promote or roll back.

A pure function of the canary's present state, of the spec's terms and of the facts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from plimsoll_operator.canary.comparison import why_worse
from plimsoll_operator.canary.counts import RequestCounts
from plimsoll_operator.canary.state import Canary, State
from plimsoll_operator.spec.canary import CanarySpec, Step

LOOK_AGAIN = timedelta(seconds=5)
"""Time between two judgements of the gateways' counts."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`ready` of the `wanted` canary pods serve; those that are not ready at `deadline` have failed.

    `hindrance`: why they are not ready, "" if unknown. `canary` and `stable`: request counts of the canary's revision
    and of all others since the canary's state began; None if no gateway reports.
    """

    wanted: int
    ready: int
    deadline: datetime
    now: datetime
    hindrance: str = ""
    canary: RequestCounts | None = None
    stable: RequestCounts | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The canary's next state; None if it is promoted. `wait`: time until the next judgement; None if only a change can
    lead to another one.
    """

    canary: Canary | None
    wait: timedelta | None = None


def begin(revision: str, stable: str, terms: CanarySpec, now: datetime) -> Canary:
    """Return a new canary at the start of its first step. It gets no requests yet."""
    return _starting(Canary(revision, stable, 1, 0, 0, State.STARTING, now, "", ""), 1, terms, now)


def taken_back(canary: Canary, why: str, now: datetime) -> Canary:
    """Return the canary as rolled back: it gets no requests."""
    return replace(canary, weight=0, state=State.TAKEN_BACK, since=now, message=words_of(why), lacking=None)


def words_of(why: str) -> str:
    """Return the message of a canary that was rolled back for this reason, at most 1,000 characters."""
    return f"taken back: {why}"[:1000]


def counted(canary: Canary, wanted: int, ready: int, now: datetime) -> Canary:
    """Return the canary with `lacking` set: the time since which fewer of its pods are ready than wanted; None if none
    is missing or it was rolled back.
    """
    if canary.state is State.TAKEN_BACK or ready >= wanted:
        return replace(canary, lacking=None)
    return canary if canary.lacking is not None else replace(canary, lacking=now)


def judge(canary: Canary, terms: CanarySpec, facts: Facts) -> Verdict:
    """Return the next state of the canary, which may be the present one, or that it is promoted."""
    if canary.state is State.TAKEN_BACK:
        return Verdict(canary)
    if canary.weight and facts.canary is not None:
        why = why_worse(terms, facts.canary, facts.stable or RequestCounts())
        if why is not None:
            return Verdict(taken_back(canary, why, facts.now))
    if facts.wanted < 1:
        return Verdict(replace(canary, message=f"{_where(canary)}: waiting: {facts.hindrance}"))
    if facts.ready < facts.wanted:
        return _not_ready(canary, terms, facts)
    if canary.state is State.STARTING:
        return Verdict(_observing(canary, terms, facts.now), LOOK_AGAIN)
    return _observed(canary, terms, facts)


def _not_ready(canary: Canary, terms: CanarySpec, facts: Facts) -> Verdict:
    if facts.now >= facts.deadline:
        why = f"{facts.ready} of {facts.wanted} of its pods are ready, and none has made progress before the deadline"
        return Verdict(taken_back(canary, f"{why}: {facts.hindrance}" if facts.hindrance else why, facts.now))
    wait = facts.deadline - facts.now
    if canary.state is State.STARTING:
        canary = _saying(canary, _made(terms.steps[canary.step - 1]))
    return Verdict(canary, min(wait, LOOK_AGAIN) if canary.weight else wait)


def _observed(canary: Canary, terms: CanarySpec, facts: Facts) -> Verdict:
    """Return the verdict on a canary whose wanted pods are all ready: wait, start the next step, or promote."""
    step = terms.steps[canary.step - 1]
    if step.weight != canary.weight:
        return Verdict(_starting(canary, canary.step, terms, facts.now), timedelta(0))
    if step.paused:
        return Verdict(_saying(canary, _task(step)), LOOK_AGAIN)
    end = canary.since + timedelta(seconds=step.pause_seconds)
    if facts.now < end:
        return Verdict(_saying(canary, _task(step)), min(end - facts.now, LOOK_AGAIN))
    answered = 0 if facts.canary is None else facts.canary.requests
    if answered < terms.least_requests:
        lacking = "no gateway reports counts" if facts.canary is None else "it has fewer so far"
        return Verdict(
            _saying(canary, f"waiting for {terms.least_requests} requests in this step; {lacking}"), LOOK_AGAIN
        )
    if canary.step < len(terms.steps):
        return Verdict(_starting(canary, canary.step + 1, terms, facts.now), timedelta(0))
    return Verdict(None)


def _starting(canary: Canary, step: int, terms: CanarySpec, now: datetime) -> Canary:
    """Return the canary at the start of a step: its pods are still to be created, so its weight is not changed yet."""
    moved = replace(
        canary,
        step=step,
        steps=len(terms.steps),
        state=State.STARTING,
        since=now,
        terms=terms.fingerprint,
        lacking=None,
    )
    return _saying(moved, _made(terms.steps[step - 1]))


def _observing(canary: Canary, terms: CanarySpec, now: datetime) -> Canary:
    weight = terms.steps[canary.step - 1].weight
    moved = replace(canary, weight=weight, state=State.OBSERVING, since=now)
    return _saying(moved, _task(terms.steps[canary.step - 1]))


def under(terms: CanarySpec, canary: Canary, now: datetime) -> Canary:
    """Return the canary with the spec's present terms. It stays at its step; if there are fewer steps now, it starts
    the last one again.
    """
    if canary.state is State.TAKEN_BACK or canary.terms == terms.fingerprint:
        return canary
    step = min(canary.step, len(terms.steps))
    moved = replace(canary, step=step, steps=len(terms.steps), terms=terms.fingerprint)
    return moved if step == canary.step else _starting(moved, step, terms, now)


def _made(step: Step) -> str:
    return f"creating pods for {step.weight}%"


def _task(step: Step) -> str:
    return "paused until spec.rollout.canary changes" if step.paused else f"for at least {step.pause_seconds} s"


def _saying(canary: Canary, what: str) -> Canary:
    return replace(canary, message=f"{_where(canary)}: {what}")


def _where(canary: Canary) -> str:
    return f"step {canary.step} of {canary.steps}, {canary.weight}% of requests"
