"""Logits of hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.models.layers.linear import Linear
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows, product_cost
from plimsoll_runtime.models.ops.weight import Range, Weight, Weights
from plimsoll_runtime.models.spec.decoder import Head


@dataclass(frozen=True, slots=True)
class NoLogits:
    """The head of a rank that computes no logits. `hidden`: columns of the hidden states."""

    hidden: int
    kind: OpKind = OpKind.HEAD

    def weights(self) -> tuple[Weight, ...]:
        """Return an empty tuple."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return zero."""
        return OpCost()

    def compiled(self, weights: Weights) -> Callable[[Tensor], Tensor]:
        """Return a function that raises ValueError."""

        def refuse(hidden: Tensor) -> Tensor:
            raise ValueError("this rank computes no logits; rank 0 does")

        return refuse

    def copies(self) -> int:
        """Return 0: there are no logits to copy."""
        return 0


@dataclass(frozen=True, slots=True)
class Logits:
    """h W^T + b in float32, scaled and capped by `head`. `weight` [vocab, hidden] is the embedding if tied.

    Of a rank's program, `weight` and `bias` may be a part of the vocabulary, and so are the logits.
    """

    head: Head
    weight: Weight
    bias: Weight | None
    kind: OpKind = OpKind.HEAD

    def weights(self) -> tuple[Weight, ...]:
        """Return the tensors that it reads."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @property
    def part(self) -> Range | None:
        """The tokens of a rank's part of the vocabulary; None if the logits are those of all tokens."""
        return None if self.weight.part is None else self.weight.part.ranges[0]

    @property
    def width(self) -> int:
        """Number of logits of a row."""
        return self.weight.shape[0]

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost, zero if no row has logits."""
        if not rows.logits:
            return OpCost()
        vocab, hidden = self.weight.shape
        product = product_cost(rows.logits, hidden, vocab, size, biased=self.bias is not None)
        return product + OpCost(rows.logits * vocab * (FLOAT32 - size))

    def compiled(self, weights: Weights) -> Callable[[Tensor], Tensor]:
        """Return the torch function: hidden [R, hidden] -> float32 [R, vocab]."""
        linear = Linear(weights.read(self.weight), None if self.bias is None else weights.read(self.bias))
        return lambda hidden: self.finished(linear(hidden).float())

    def copies(self) -> int:
        """Return the number of extra copies of the logits during scaling and capping."""
        return 2 * (self.head.softcap is not None) + (self.head.scale != 1.0)

    def finished(self, logits: Tensor) -> Tensor:
        """Scale and cap a product's float32 logits."""
        if self.head.scale != 1.0:
            logits = logits * self.head.scale
        if self.head.softcap is not None:
            logits = torch.tanh(logits / self.head.softcap) * self.head.softcap
        return logits
