"""Whether a canary answers worse than the stable pods: two tests that may be asked again with every request.

With a probability of `ERROR` at the most, a canary that is no worse is ever taken back in a step, over all looks
together; each of the two tests has half of it.

Failures: the canary's share is worse if its lowest bound lies above both what is allowed and the highest bound of the
stable pods' share. What fails everywhere alike is nobody's fault.

First bytes: they are later if there are two bounds of buckets, b and c >= (1 + increase) b, so that `QUANTILE` of the
stable pods' come by b and fewer than that of the canary's by c. Every bucket has its part of the error, so that it does
not matter that the bounds are chosen after the counts were seen.
"""

from __future__ import annotations

import math

from plimsoll_operator.canary.counts import RequestCounts
from plimsoll_operator.spec.canary import CanarySpec

HALVINGS = 60


def lowest(hits: int, tries: int, error: float) -> float:
    """Below this the share is not, but for a probability of `error` over all times."""
    return _edge(hits, tries, error, 0.0)


def highest(hits: int, tries: int, error: float) -> float:
    """Above this the share is not, but for a probability of `error` over all times."""
    return _edge(hits, tries, error, 1.0)


def log_evidence(hits: int, tries: int, share: float) -> float:
    """The logarithm of E against a share; infinite where what was seen is impossible."""
    misses = tries - hits
    if (share <= 0 and hits) or (share >= 1 and misses):
        return math.inf
    mixture = math.lgamma(hits + 0.5) + math.lgamma(misses + 0.5) - math.lgamma(tries + 1) - math.log(math.pi)
    likelihood = (hits * math.log(share) if hits else 0.0) + (misses * math.log1p(-share) if misses else 0.0)
    return mixture - likelihood


def _edge(hits: int, tries: int, error: float, end: float) -> float:
    """Where E reaches 1/error between what was seen and `end`; `end` itself where it does not."""
    if not tries:
        return end
    limit = -math.log(error)
    inside, outside = hits / tries, end
    if log_evidence(hits, tries, end) < limit:
        return end
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        if log_evidence(hits, tries, middle) < limit:
            inside = middle
        else:
            outside = middle
    return outside


ERROR = 0.02
QUANTILE = 0.9


def why_worse(terms: CanarySpec, canary: RequestCounts, stable: RequestCounts) -> str | None:
    """Why the canary is worse, in words; None where that cannot be said."""
    return _fails_more(terms, canary, stable) or _begins_later(terms, canary, stable)


def _fails_more(terms: CanarySpec, canary: RequestCounts, stable: RequestCounts) -> str | None:
    error = ERROR / 4  # one of two tests, one of two bounds
    if canary.rate <= max(terms.max_error_rate, stable.rate):
        return None
    surely = lowest(canary.failed, canary.requests, error)
    if surely <= max(terms.max_error_rate, highest(stable.failed, stable.requests, error) if stable.requests else 0.0):
        return None
    return (
        f"{canary.failed} of {canary.requests} requests failed against {stable.failed} of {stable.requests} "
        f"(allowed: {_percent(terms.max_error_rate)})"
    )


def _begins_later(terms: CanarySpec, canary: RequestCounts, stable: RequestCounts) -> str | None:
    if not canary.timed or not stable.timed:
        return None
    error = ERROR / 4 / max(1, len(canary.first_bytes), len(stable.first_bytes))
    factor = 1 + terms.max_latency_increase
    early = [b for b, count in stable.first_bytes if lowest(count, stable.timed, error) >= QUANTILE]
    late = [c for c, count in canary.first_bytes if highest(count, canary.timed, error) < QUANTILE]
    if not early or not late or max(late) < factor * min(early):
        return None
    return (
        f"{_percent(QUANTILE)} of first bytes come within {min(early):g} s from the stable pods, and take longer than "
        f"{max(late):g} s from the canary (allowed: {_percent(terms.max_latency_increase)} more)"
    )


def _percent(share: float) -> str:
    return f"{share * 100:g}%"
