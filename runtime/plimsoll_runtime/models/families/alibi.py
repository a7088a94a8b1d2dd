"""Slopes of ALiBi (Press et al., 2022), by two rules for a number of heads that is no power of two."""

from __future__ import annotations

from math import ceil, floor, log2

from plimsoll_runtime.errors import ModelError

MAX_HEADS = 4096
"""More than any model has: a config that says more is damaged, and would fill the memory with slopes."""


def slopes_of(heads: int) -> tuple[float, ...]:
    """BLOOM's and Falcon's: those of the next smaller power of two, then every other one of the next larger."""
    _check(heads)
    whole = 2 ** floor(log2(heads))
    return (*_geometric(whole), *_geometric(2 * whole)[::2][: heads - whole])


def alternating_slopes_of(heads: int, largest: int) -> tuple[float, ...]:
    """MPT's: of those of the next larger power of two the second, the fourth and so on, then the others.

    The exponents of 1/2 end at `largest`.
    """
    _check(heads)
    every = _geometric(2 ** ceil(log2(heads)), largest)
    return every if len(every) == heads else (*every[1::2], *every[::2])[:heads]


def _check(heads: int) -> None:
    if heads > MAX_HEADS:
        raise ModelError(f"config.json: there are {heads} heads, and at most {MAX_HEADS} can have slopes (ALiBi)")


def _geometric(heads: int, largest: int = 8) -> tuple[float, ...]:
    return tuple(2.0 ** (-largest * (i + 1) / heads) for i in range(heads))
