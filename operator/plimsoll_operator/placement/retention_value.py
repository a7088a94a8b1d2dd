"""The retention value, computed from decayed frequencies and not with an ageing clock as in GreedyDual.

docs/concepts/residency.md explains the formula. Operator and runtime are checked against the same vectors in
tests/contract/test_retention_value.py. Ageing clocks of different hosts have different origins, so values that include
them cannot be compared. The planner decays every frequency to the same time instead.
"""

from __future__ import annotations

import math

HALF_LIFE = 300.0
"""Seconds in which the frequency of an unused model halves. Hosts use the same half-life."""
MEMORY = 3600.0
"""Half-life in seconds of rates over all hosts (Demand.rate). Five minutes show which models are in use; their value
takes longer to measure: on a Zipf trace of two hours, one hour caused 5 % less loading than five minutes.
"""
SCALE = 3600.0 * 2**30


def decayed(rate: float, seconds: float, half_life: float = HALF_LIFE) -> float:
    """Return a decayed frequency (requests a second), `seconds` after it was reported."""
    return rate * 0.5 ** (seconds / half_life) if seconds > 0 else rate


def retention(rate: float, seconds: float, weight: float, size: int) -> float:
    """Return the retention value: the seconds of loading saved an hour for each GiB, times `weight`.

    `rate` in requests a second, `seconds` of loading that a request costs without the memory, `size` of the memory in
    bytes. The value is infinite if `size` is not positive.
    """
    return rate * seconds * weight * SCALE / size if size > 0 else math.inf


def chance(rate: float, seconds: float) -> float:
    """Return the probability of at least one request within `seconds`, for independent arrivals."""
    return -math.expm1(-rate * seconds)
