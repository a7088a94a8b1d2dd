"""What an op must move and multiply at least: the numbers that measured times are held against.

Bytes are those of a perfect machine: every weight is read once a step, a sequence's keys and values once a layer, and
each op's input and output pass once, in the model's own dtype. Operations count a multiplication and an addition as
two; what a causal mask or a window hides is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FLOAT32 = 4
"""Bytes of an element of a norm, a bias and the logits, whatever the model runs in."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """Bytes through memory and floating point operations."""

    bytes: int = 0
    flops: int = 0

    def __add__(self, other: OpCost) -> OpCost:
        return OpCost(self.bytes + other.bytes, self.flops + other.flops)

    def __mul__(self, times: int) -> OpCost:
        return OpCost(self.bytes * times, self.flops * times)


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step: how many, of how many logits are wanted, and of each sequence (first position, end)."""

    count: int
    logits: int
    spans: Sequence[tuple[int, int]]


def total(costs: Iterable[OpCost]) -> OpCost:
    """All of them together."""
    return sum(costs, OpCost())


def product_cost(rows: int, inputs: int, outputs: int, size: int, *, biased: bool) -> OpCost:
    """Of a matrix product whose weight has elements of `size` bytes."""
    bias = outputs * FLOAT32 if biased else 0
    return OpCost((inputs * outputs + rows * (inputs + outputs)) * size + bias, 2 * rows * inputs * outputs)
