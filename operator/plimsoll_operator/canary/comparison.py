"""Tests whether a canary is worse than the stable pods: by its failure rate, and by its time to first byte.

Both tests may be repeated after every request. The probability that a canary which is not worse is rolled back in a
step is at most `ERROR`, over all repetitions; each test has half of it. The bounds are always-valid: they hold at all
times together.

Failures: the canary is worse if the lower bound of its failure rate exceeds both the allowed rate and the upper bound
of the stable pods' rate. Failures that affect all pods alike do not count against it.

Time to first byte: the canary is slower if its histogram has a bound c and that of the stable pods a bound b with c >=
(1 + `max_latency_increase`) b, so that at least `QUANTILE` of the stable pods' outputs begin within b and less than
that share of the canary's within c. The error is divided among the bounds, so they may be chosen after the counts are
known.
"""

from __future__ import annotations

import math

from plimsoll_operator.canary.counts import RequestCounts
from plimsoll_operator.spec.canary import CanarySpec

HALVINGS = 60


def lowest(hits: int, tries: int, error: float) -> float:
    """Return a lower bound of the true share of hits. The probability that it is wrong at any time, while `tries`
    grows, is at most `error`. It is 0 without tries.
    """
    return _edge(hits, tries, error, 0.0)


def highest(hits: int, tries: int, error: float) -> float:
    """Return an upper bound of the true share of hits. The probability that it is wrong at any time, while `tries`
    grows, is at most `error`. It is 1 without tries.
    """
    return _edge(hits, tries, error, 1.0)


def log_evidence(hits: int, tries: int, share: float) -> float:
    """Return the logarithm of the evidence E against a share; infinite if the counts are impossible with it.

    E is the Bayes factor of a Jeffreys prior, Beta(1/2, 1/2), against the share.
    """
    misses = tries - hits
    if (share <= 0 and hits) or (share >= 1 and misses):
        return math.inf
    mixture = math.lgamma(hits + 0.5) + math.lgamma(misses + 0.5) - math.lgamma(tries + 1) - math.log(math.pi)
    likelihood = (hits * math.log(share) if hits else 0.0) + (misses * math.log1p(-share) if misses else 0.0)
    return mixture - likelihood


def _edge(hits: int, tries: int, error: float, end: float) -> float:
    """Return the share between the observed one and `end` at which E reaches 1/error, or `end` if it does not."""
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
    """Return why the canary is worse, or None if that is not certain."""
    return _fails_more(terms, canary, stable) or _begins_later(terms, canary, stable)


def _fails_more(terms: CanarySpec, canary: RequestCounts, stable: RequestCounts) -> str | None:
    error = ERROR / 4  # one of two tests, one of two bounds
    if canary.rate <= max(terms.max_error_rate, stable.rate):
        return None
    surely = lowest(canary.failed, canary.requests, error)
    if surely <= max(terms.max_error_rate, highest(stable.failed, stable.requests, error) if stable.requests else 0.0):
        return None
    return (
        f"{canary.failed} of {canary.requests} requests failed; on stable pods, {stable.failed} of {stable.requests} "
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
        f"the {_percent(QUANTILE)} quantile of the time to first byte is at most {min(early):g} s for the stable pods "
        f"and above {max(late):g} s for the canary (allowed: {_percent(terms.max_latency_increase)} more)"
    )


def _percent(share: float) -> str:
    return f"{share * 100:g}%"
