"""What a share can be at most, and at least, of which some tries were seen: right however often one looks.

Confidence sequences by the method of mixtures (Robbins, 1970; Howard et al., 2021). For every p let

    E(p) = B(x + 1/2, n - x + 1/2) / (B(1/2, 1/2) p^x (1 - p)^(n - x))

after x of n. If p is the true share, E is a martingale that begins at 1, so by Ville's inequality it ever reaches 1/a
with probability a at the most. All p with E(p) < 1/a are thus a set that the true share never leaves with probability
1 - a, over all looks together: whoever looks after each request errs no more often than whoever looks once.
"""

from __future__ import annotations

import math

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
