"""Kinds of ops, the least bytes and operations of an op, and the times that a decoder measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from plimsoll_runtime.engine.work.visible import Visible, experts_read

FLOAT32 = 4
"""Bytes of an element of a norm, a bias or the logits, which are float32 in any run."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """Bytes of memory traffic and floating point operations.

    Counted for a perfect machine: each weight is read once a step, a sequence's keys and values once a layer, and each
    op's input and output pass once, in the model's dtype. A multiplication and an addition count as two operations.
    Pairs hidden by a causal mask or a window are not counted.
    """

    bytes: int = 0
    flops: int = 0

    def __add__(self, other: OpCost) -> OpCost:
        return OpCost(self.bytes + other.bytes, self.flops + other.flops)

    def __mul__(self, times: int) -> OpCost:
        return OpCost(self.bytes * times, self.flops * times)


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of a step: their number, the number with logits, and (first position, end) of each sequence.

    The cost of an op is linear in `count`, `sequences`, and the results of `seen` and `experts_read`; that of a head in
    `logits`, and in whether there are any.
    """

    count: int
    logits: int
    spans: Sequence[tuple[int, int]]

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self.spans)

    def seen(self, mask: Visible) -> tuple[int, int]:
        """Return the tokens that all rows attend to, and the pairs (see `Visible.of_spans`)."""
        return mask.of_spans(self.spans)

    def experts_read(self, experts: int, chosen: int) -> float:
        """Return how many of `experts` are read if each row chooses `chosen` of them at random."""
        return experts_read(experts, chosen, self.count)


def total(costs: Iterable[OpCost]) -> OpCost:
    """Return the sum of costs."""
    return sum(costs, OpCost())


def product_cost(rows: int, inputs: int, outputs: int, size: int, *, biased: bool) -> OpCost:
    """Return the cost of a matrix product whose weight has elements of `size` bytes."""
    bias = outputs * FLOAT32 if biased else 0
    return OpCost((inputs * outputs + rows * (inputs + outputs)) * size + bias, 2 * rows * inputs * outputs)


class OpKind(StrEnum):
    """Kinds of work in a decoder, in the order of a layer.

    - embed: token rows, their scale, and values that depend only on positions
    - norm: all norms over hidden states; in torch also the residual sum before them
    - qkv: the products before attention or before a recurrence
    - rope: norms over heads and the rotation
    - attention: writing keys and values to the cache (native code may count it as rope), and attention itself
    - output, down: the product and its residual
    - gate_up: the product, the activation and the multiplication
    - state: convolutions, recurrences over a sequence's state, and their gates
    - route, experts: the choice of experts, and their computation; only in mixtures
    - reduce: sums over the ranks of a parallel group, including the time in which a rank waits for others
    - stage: values from and to other stages of a pipeline, including the time in which a stage waits for them
    - head: the logits; timed by the runner, because decoders compute them in a separate call
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
    REDUCE = "reduce"
    STAGE = "stage"
    HEAD = "head"


@runtime_checkable
class TimesOps(Protocol):
    """A decoder that measures the time of its ops: itself if that is nearly free, otherwise through a wrapper.

    All decoders use the same kinds. An op lasts until the next one begins, so it includes work between the two (a
    residual, an activation, a view).
    """

    def take_seconds(self) -> Mapping[str, float]:
        """Return the seconds by kind of op since the last call."""
