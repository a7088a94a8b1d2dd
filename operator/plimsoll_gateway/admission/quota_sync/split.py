"""Splits a quota among gateways by their demand; max-min fair if the demand exceeds the quota."""

from __future__ import annotations

from collections.abc import Sequence


def even(quota: int, members: int, position: int) -> int:
    """Return the even share of the member at `position`; the first ones get the remainder. All sum to the quota."""
    return quota // members + (position < quota % members)


def split(quota: int, wants: Sequence[int]) -> list[int]:
    """Return a share for each of `wants` (total demands), in order. The shares sum to the quota.

    If all demands fit, each is met and gets an even part of the rest. Otherwise shares are max-min fair: none exceeds
    its demand, and all whose demand is not met get the same. A larger demand than that changes nothing. Past usage
    changes nothing either: a gateway that used more than its share gives it up as the usage leaves its last minute. If
    usage counted, a gateway with constant demand would always regain it, and the others would get nothing.
    """
    spare = quota - sum(wants)
    if spare >= 0:
        return [want + even(spare, len(wants), at) for at, want in enumerate(wants)]
    level, left = _level(quota, wants)
    shares = []
    for want in wants:
        one_more = left > 0 and want > level
        left -= one_more
        shares.append(min(want, level) + one_more)
    return shares


def _level(quota: int, wants: Sequence[int]) -> tuple[int, int]:
    """Return the level up to which demands are met, and the remainder that cannot be divided among the unmet."""
    level, left, rising = 0, quota, len(wants)
    for want in sorted(wants):
        if rising * (want - level) > left:
            break
        left -= rising * (want - level)
        level, rising = want, rising - 1
    return level + left // rising, left % rising
