"""What becomes of a canary: wait, go on, promote or take back. A pure function of its terms and of what was seen.

Asked twice of the same it answers the same, and what it answers is where the next question begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from plimsoll_operator.canary.comparison import why_worse
from plimsoll_operator.canary.counts import RequestCounts
from plimsoll_operator.canary.state import Canary, State
from plimsoll_operator.spec.canary import CanarySpec, Step

LOOK_AGAIN = timedelta(seconds=5)
"""How often what gateways saw is judged."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`ready` of the `wanted` pods of the canary serve; what is not by `deadline` never will.

    `hindrance`: why they do not, "" where nothing is known. `canary` and `stable` were seen since the state began; None
    where nobody tells.
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
    """Where the canary is from now on; None once all requests may go to its revision. `wait`: when to look again."""

    canary: Canary | None
    wait: timedelta | None = None


def begin(revision: str, stable: str, terms: CanarySpec, now: datetime) -> Canary:
    """A canary whose pods are still to be made."""
    return _starting(Canary(revision, stable, 1, 0, 0, State.STARTING, now, "", ""), 1, terms, now)


def taken_back(canary: Canary, why: str, now: datetime) -> Canary:
    """It gets no requests any more."""
    return replace(canary, weight=0, state=State.TAKEN_BACK, since=now, message=words_of(why), lacking=None)


def words_of(why: str) -> str:
    """The message of a canary that was taken back for that."""
    return f"taken back: {why}"[:1000]


def counted(canary: Canary, wanted: int, ready: int, now: datetime) -> Canary:
    """The same, with since when pods lack: those that are wanted from now on have their time from now on."""
    if canary.state is State.TAKEN_BACK or ready >= wanted:
        return replace(canary, lacking=None)
    return canary if canary.lacking is not None else replace(canary, lacking=now)


def judge(canary: Canary, terms: CanarySpec, facts: Facts) -> Verdict:
    """What becomes of a canary."""
    if canary.state is State.TAKEN_BACK:
        return Verdict(canary)
    if canary.weight and facts.canary is not None:
        why = why_worse(terms, facts.canary, facts.stable or RequestCounts())
        if why is not None:
            return Verdict(taken_back(canary, why, facts.now))
    if facts.wanted < 1:
        return Verdict(replace(canary, message=f"{_where(canary)}: waits, as {facts.hindrance or 'no pod is wanted'}"))
    if facts.ready < facts.wanted:
        return _not_ready(canary, terms, facts)
    if canary.state is State.STARTING:
        return Verdict(_observing(canary, terms, facts.now), LOOK_AGAIN)
    return _observed(canary, terms, facts)


def _not_ready(canary: Canary, terms: CanarySpec, facts: Facts) -> Verdict:
    if facts.now >= facts.deadline:
        why = f"{facts.ready} of {facts.wanted} of its pods are ready, and none has come nearer to it for too long"
        return Verdict(taken_back(canary, f"{why}: {facts.hindrance}" if facts.hindrance else why, facts.now))
    wait = facts.deadline - facts.now
    if canary.state is State.STARTING:
        canary = _saying(canary, _made(terms.steps[canary.step - 1]))
    return Verdict(canary, min(wait, LOOK_AGAIN) if canary.weight else wait)


def _observed(canary: Canary, terms: CanarySpec, facts: Facts) -> Verdict:
    """All its pods serve: whether the step is over."""
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
        lacking = "no gateway tells what it saw" if facts.canary is None else "fewer were seen"
        return Verdict(_saying(canary, f"until {terms.least_requests} are answered; {lacking}"), LOOK_AGAIN)
    if canary.step < len(terms.steps):
        return Verdict(_starting(canary, canary.step + 1, terms, facts.now), timedelta(0))
    return Verdict(None)


def _starting(canary: Canary, step: int, terms: CanarySpec, now: datetime) -> Canary:
    """The step's pods are made; gateways go on as before."""
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
    """The same under these terms, perhaps others than before: it stays at its step, or at the last one."""
    if canary.state is State.TAKEN_BACK or canary.terms == terms.fingerprint:
        return canary
    step = min(canary.step, len(terms.steps))
    moved = replace(canary, step=step, steps=len(terms.steps), terms=terms.fingerprint)
    return moved if step == canary.step else _starting(moved, step, terms, now)


def _made(step: Step) -> str:
    return f"pods for {step.weight}% are made"


def _task(step: Step) -> str:
    return "paused until spec.rollout.canary says otherwise" if step.paused else f"for {step.pause_seconds} s at least"


def _saying(canary: Canary, what: str) -> Canary:
    return replace(canary, message=f"{_where(canary)}: {what}")


def _where(canary: Canary) -> str:
    return f"step {canary.step} of {canary.steps}, {canary.weight}% of requests"
