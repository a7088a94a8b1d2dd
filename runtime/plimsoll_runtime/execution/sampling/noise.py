"""Repeatable randomness: a uniform number for each (seed, index), without any generator's state.

A draw that depends on nothing but the request's seed and the index of the token is the same in whatever batch the
request finds itself, and after a preemption. The mixing function is SplitMix64's finaliser (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", 2014), applied once to the seed and once with the index.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_DOUBLE_BITS = np.uint64(11)


def uniforms(seeds: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one for each pair (int64 [R], int64 [R] -> float64 [R])."""
    with np.errstate(over="ignore"):
        state = _mix(seeds.astype(np.uint64) + _GAMMA)
        state = _mix(state ^ ((indices.astype(np.uint64) + np.uint64(1)) * _GAMMA))
    return (state >> _DOUBLE_BITS).astype(np.float64) * 2.0**-53


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))
