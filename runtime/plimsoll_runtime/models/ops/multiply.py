"""Products of values, with or without a gate's activation, and sparse activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_kernels.activation.reference import ACTIVATIONS
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.embed import rounded
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight

Opening = Activation | Literal["sigmoid", "none"]
_OPENINGS: Mapping[Opening, Callable[[Tensor], Tensor]] = {
    **dict(ACTIVATIONS.items()),
    "sigmoid": torch.sigmoid,
    "none": lambda x: x,
}


@dataclass(frozen=True, slots=True)
class Multiply:
    """x activation(g). Reads x and g, both `width` wide."""

    width: int
    activation: Opening
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STATE

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        elements = rows.count * self.width
        return OpCost(3 * elements * size, 2 * elements)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 4 * self.width * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        opening = _OPENINGS[self.activation]

        def run(step: Step, x: Tensor, gate: Tensor) -> Tensor:
            return x * opening(gate)

        return run


FLOPS = 6
"""For each element: its share of a mean and of a deviation, the difference, and the comparison."""


@dataclass(frozen=True, slots=True)
class Sparsify:
    """max(0, x - c), where c has the `share` of a row's numbers below it if they are normally distributed."""

    width: int
    share: float
    reads: Values
    writes: Values
    kind: OpKind = OpKind.GATE_UP

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        elements = rows.count * self.width
        return OpCost(2 * elements * size, FLOPS * elements)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 3 * self.width * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        deviations = NormalDist().inv_cdf(self.share)

        def run(step: Step, x: Tensor) -> Tensor:
            cut = x.mean(dim=-1, keepdim=True)
            cut = cut + x.std(dim=-1, keepdim=True, unbiased=False) * rounded(deviations, x.dtype)
            return (x - cut).relu()

        return run
