"""Figures of a run from the users' perspective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean

from scheduling.simulate import Engine, Outcome, Run


@dataclass(frozen=True, slots=True)
class Objective:
    """Latency objective: seconds to the first token, for requests without a deadline, and between tokens (mean)."""

    ttft: float = 30.0
    gap: float = 0.1

    def met_by(self, outcome: Outcome) -> bool:
        """Return whether the output met the objective; for a request with a deadline, its first token must meet that
        instead.
        """
        if not outcome.token_times:
            return False
        deadline = outcome.request.deadline
        limit = self.ttft if deadline is None else deadline
        return ttft(outcome) <= limit and mean_gap(outcome) <= self.gap


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds; shares from 0 to 1; `goodput` in requests per second that met their objective. TTFT is over answered
    requests. `fairness` is Jain's index of the service of each request: the time it would take alone over the time it
    took, 0 if it was dropped.
    """

    ttft_mean: float
    ttft_p99: float
    interactive_ttft_mean: float
    interactive_ttft_p99: float
    gap_mean: float
    gap_p99: float
    goodput: float
    given_up: float
    fairness: float
    hit_share: float
    preemptions: float

    def as_dict(self) -> dict[str, float]:
        """Return the figures for a file, rounded to significant digits."""
        return {name: float(f"{value:.4g}") for name, value in asdict(self).items()}


def figures(engine: Engine, run: Run, objective: Objective) -> Figures:
    """Return the figures of one run."""
    answered = [outcome for outcome in run.outcomes if outcome.token_times]
    waits = [ttft(outcome) for outcome in answered]
    urgent = [ttft(outcome) for outcome in answered if outcome.request.interactive]
    gaps = [later - earlier for outcome in answered for earlier, later in pairwise(outcome.token_times)]
    return Figures(
        ttft_mean=_mean(waits),
        ttft_p99=percentile(waits, 99),
        interactive_ttft_mean=_mean(urgent),
        interactive_ttft_p99=percentile(urgent, 99),
        gap_mean=_mean(gaps),
        gap_p99=percentile(gaps, 99),
        goodput=sum(map(objective.met_by, run.outcomes)) / run.seconds,
        given_up=fmean(outcome.given_up for outcome in run.outcomes),
        fairness=jain([_due(engine, outcome) for outcome in run.outcomes]),
        hit_share=run.hit_share,
        preemptions=float(run.preemptions),
    )


def mean_of(several: Sequence[Figures]) -> Figures:
    """Return the mean of each figure over runs of the same kind."""
    return Figures(**{name: fmean(getattr(one, name) for one in several) for name in asdict(several[0])})


def ttft(outcome: Outcome) -> float:
    """Return seconds from arrival to the first token."""
    return outcome.token_times[0] - outcome.request.at


def mean_gap(outcome: Outcome) -> float:
    """Return mean seconds between tokens; 0 for an output of one token."""
    times = outcome.token_times
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index: 1 if all values are equal, 1 / n if one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is at least as large as `share` % of the values; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * share // 100) - 1)] if ordered else 0.0


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _due(engine: Engine, outcome: Outcome) -> float:
    if not outcome.token_times:
        return 0.0
    return engine.seconds_alone(outcome.request) / (outcome.token_times[-1] - outcome.request.at)
