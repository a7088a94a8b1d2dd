"""How a quota is split among those who want it: fair shares where it is less than all want."""

from __future__ import annotations

from collections.abc import Sequence


def even(quota: int, members: int, position: int) -> int:
    """An even share; the first ones get what cannot be divided. The shares of all positions make the quota."""
    return quota // members + (position < quota % members)


def split(quota: int, wants: Sequence[int]) -> list[int]:
    """A share for each of whom is known how much he wants in all, in their order; together the quota.

    Where all that is wanted fits, each gets it, and an even part of the rest. Else shares are max-min fair: nobody gets
    more than he wants, and whoever wants more gets as much as any other who does. Asking for more than that changes
    nothing. What somebody has used changes nothing either: who has used more than his share gives it up as it leaves
    his last minute. Did it count, one that is always asked would take again whatever leaves, and others get nothing.
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
    """Up to where all are filled who want that much, and what is left because it cannot be divided among them."""
    level, left, rising = 0, quota, len(wants)
    for want in sorted(wants):
        if rising * (want - level) > left:
            break
        left -= rising * (want - level)
        level, rising = want, rising - 1
    return level + left // rising, left % rising
