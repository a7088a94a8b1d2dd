"""Sums of partial results over the ranks of a parallel group."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weights


@dataclass(frozen=True, slots=True)
class Reduce(Op):
    """The sum of a value over `ranks` ranks. Each of them has computed a part of the products behind it."""

    width: int
    ranks: int
    reads: Values
    writes: Values
    kind: OpKind = OpKind.REDUCE

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost of a rank: it reads the parts of all ranks and writes the sum, in float32."""
        elements = rows.count * self.width
        return OpCost((self.ranks + 1) * elements * FLOAT32, (self.ranks - 1) * elements)

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the result, and of the partial and the summed row in float32."""
        return self.width * (size + 2 * FLOAT32)

    def compiled(self, weights: Weights) -> Run:
        def run(step: Step, x: Tensor) -> Tensor:
            if step.collectives is None:
                raise ValueError("a rank's program is run without the collectives of its group")
            return step.collectives.sum(x)

        return run
