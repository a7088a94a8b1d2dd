"""The kinds of ops, the bytes and operations that an op needs at least, and the times that a decoder measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

FLOAT32 = 4
"""Bytes of an element of a norm, a bias and the logits, whatever the model runs in."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """Bytes through memory and floating point operations.

    For a perfect machine: every weight is read once a step, a sequence's keys and values once a layer, and each op's
    input and output pass once, in the model's own dtype. Operations count a multiplication and an addition as two; what
    a causal mask or a window hides is not counted.
    """

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


class OpKind(StrEnum):
    """What a decoder does, in the order of a layer.

    - embed: token rows, their scale, and what depends on positions alone
    - norm: all norms over hidden states, and in torch the residual sum before them
    - rope: norms over heads and the rotation
    - attention: keys and values into the cache (native code may count the writing as rope), and all of attending
    - output, down: the product and its residual
    - gate_up: the product, the activation and the multiplication
    - state: convolutions and recurrences over a sequence's own state, and what gates them
    - route, experts: which experts a token goes to, and all that they do; of mixtures alone
    - head: the logits; timed by the runner, for a decoder computes them in a call of its own
    """

    EMBED = "embed"
    NORM = "norm"
    QKV = "qkv"
    ROPE = "rope"
    ATTENTION = "attention"
    STATE = "state"
    OUTPUT = "output"
    ROUTE = "route"
    EXPERTS = "experts"
    GATE_UP = "gate_up"
    DOWN = "down"
    HEAD = "head"


@runtime_checkable
class TimesOps(Protocol):
    """A decoder that times its ops: always, where that is nearly free, else because it was wrapped to do so.

    Every decoder uses the same kinds, whether it runs op by op or everything in one native call. An op lasts until the
    next begins, so what lies between two of them (a residual, an activation, a view) belongs to the first.
    """

    def take_seconds(self) -> Mapping[str, float]:
        """Seconds by kind of op since the last call."""
