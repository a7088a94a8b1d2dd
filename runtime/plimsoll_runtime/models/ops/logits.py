"""Hidden states to logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.models.layers.linear import Linear
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows, product_cost
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.decoder import Head


@dataclass(frozen=True, slots=True)
class Logits:
    """h W^T + b in float32, scaled and capped as `head` says. `weight` [vocab, hidden]: where tied, the embedding."""

    head: Head
    weight: Weight
    bias: Weight | None
    kind: OpKind = OpKind.HEAD

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: nothing where no row wants logits."""
        if not rows.logits:
            return OpCost()
        vocab, hidden = self.weight.shape
        product = product_cost(rows.logits, hidden, vocab, size, biased=self.bias is not None)
        return product + OpCost(rows.logits * vocab * (FLOAT32 - size))

    def compiled(self, weights: Weights) -> Callable[[Tensor], Tensor]:
        """What computes it in torch: hidden [R, hidden] -> float32 [R, vocab]."""
        linear = Linear(weights.read(self.weight), None if self.bias is None else weights.read(self.bias))
        return lambda hidden: self.finished(linear(hidden).float())

    def copies(self) -> int:
        """How many more there are of the logits while they are scaled and capped."""
        return 2 * (self.head.softcap is not None) + (self.head.scale != 1.0)

    def finished(self, logits: Tensor) -> Tensor:
        """What the product gives, scaled and capped; float32."""
        if self.head.scale != 1.0:
            logits = logits * self.head.scale
        if self.head.softcap is not None:
            logits = torch.tanh(logits / self.head.softcap) * self.head.softcap
        return logits
