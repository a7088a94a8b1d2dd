"""All but the largest of a row's numbers cut away."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.cost import OpCost, StepRows
from plimsoll_runtime.models.ops.embed import rounded
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight

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
