"""Compares the best rule that knows every popularity, but not the next request, with the best schedule.

Each request is independent, with a fixed distribution over models. Memory has room for a number of models of one size,
a miss is one load, and requests do not wait for each other. Then no rule pays less in the long run than the one that
keeps the most popular models in all places except one, which has the last requested model (A0: Aho, Denning and Ullman,
1971). Belady's rule, which drops the model that is needed last, pays the least of all that know the requests.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def known(shares: Sequence[float], room: int) -> float:
    """Return misses per request of the best rule that knows the shares, which are of all requests, in
    descending order.
    """
    rest = shares[room - 1 :]
    return sum(rest) - sum(share * share for share in rest) / sum(rest)


def belady(asked: Sequence[int], room: int) -> int:
    """Return the misses of the best schedule for these requests."""
    following, later = [0] * len(asked), dict[int, int]()
    for place in range(len(asked) - 1, -1, -1):
        following[place] = later.get(asked[place], len(asked))
        later[asked[place]] = place
    kept: dict[int, int] = {}
    misses = 0
    for place, model in enumerate(asked):
        if model not in kept:
            misses += 1
            if len(kept) == room:
                del kept[max(kept, key=kept.__getitem__)]
        kept[model] = following[place]
    return misses


def ratio(shares: Sequence[float], room: int, requests: int = 100_000, seed: int = 0) -> float:
    """Return the misses of `known` over those of `belady`, for this number of random requests."""
    asked = random.Random(seed).choices(range(len(shares)), shares, k=requests)
    return known(shares, room) * requests / belady(asked, room)
