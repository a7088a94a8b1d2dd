"""How a budget is split among those who want it: everybody's need first, and where that is too much, fair shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """What one member has `used` and cannot give back, and what it would `want` in all (never less than that)."""

    used: int
    want: int


def even(budget: int, members: int, position: int) -> int:
    """An even share; the first ones get what cannot be divided. The shares of all positions make the budget."""
    return budget // members + (position < budget % members)


def split(budget: int, needs: Sequence[Need]) -> list[int]:
    """A share for each, in their order; together the budget, unless more than that is used.

    Where all that is wanted fits, each gets it, and an even part of the rest. Else shares are max-min fair: nobody gets
    more than he wants, nor less than he has used, and whoever wants more gets as much as any other who does. Asking for
    more than that changes nothing.
    """
    spare = budget - sum(need.want for need in needs)
    if spare >= 0:
        return [need.want + even(spare, len(needs), at) for at, need in enumerate(needs)]
    level, left = _level(budget, needs)
    shares = []
    for need in needs:
        share = max(need.used, min(need.want, level))
        if left and need.used <= level < need.want:
            share, left = share + 1, left - 1
        shares.append(share)
    return shares


def _level(budget: int, needs: Sequence[Need]) -> tuple[int, int]:
    """Up to where all are filled who want that much, and what is left because it cannot be divided among them."""
    left = budget - sum(need.used for need in needs)
    if left < 0:
        return 0, 0
    turns = sorted([(need.used, 1) for need in needs] + [(need.want, -1) for need in needs])
    level = rising = 0
    for height, change in turns:
        if rising * (height - level) > left:
            break
        left -= rising * (height - level)
        level, rising = height, rising + change
    return (level + left // rising, left % rising) if rising else (level, 0)
