"""Retention value: what it is worth to keep a model where it is, in the sense of GreedyDual-Size-Frequency.

Cherkasova (1998) keeps what has the highest `clock + frequency x cost / size`; a host does so with its engines. The
clock ages what is not used any more. Hosts' clocks have different origins, so values of different hosts cannot be
compared with them. The planner lets every frequency decay to the same instant instead, and leaves the clock out: what
nobody uses loses half of its value every five minutes.
"""

from __future__ import annotations

import math

HALF_LIFE = 300.0
"""Seconds in which the frequency of what nobody asks for falls by half. Hosts decay with the same."""
MEMORY = 3600.0
"""The same for the rates that are told for all hosts together (Demand.rate). Five minutes tell who is in use; who is
worth keeping takes longer to know: on a Zipf trace of two hours an hour paid 5 % less loading than five minutes did.
"""
SCALE = 3600.0 * 2**30


def decayed(rate: float, seconds: float, half_life: float = HALF_LIFE) -> float:
    """A decayed frequency (requests a second), so many seconds after it was reported."""
    return rate * 0.5 ** (seconds / half_life) if seconds > 0 else rate


def retention(rate: float, seconds: float, weight: float, size: int) -> float:
    """Seconds of loading saved an hour for each GiB that is kept.

    `rate` in requests a second, `seconds` to bring it back, `size` in bytes. What takes no room is worth keeping.
    """
    return rate * seconds * weight * SCALE / size if size > 0 else math.inf


def chance(rate: float, seconds: float) -> float:
    """How likely at least one request comes within so many seconds, if they come independently."""
    return -math.expm1(-rate * seconds)
