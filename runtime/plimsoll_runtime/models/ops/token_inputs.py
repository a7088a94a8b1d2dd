"""What a token says to each layer beside its hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from torch import Tensor

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, StepRows
from plimsoll_runtime.models.ops.normalise import FLOPS as NORM_FLOPS
from plimsoll_runtime.models.ops.normalise import Normaliser, scale_of
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class JoinInputs:
    """(x + norm(y x scale)) / sqrt(2), where each `width` columns of y are normed by themselves. `weight` [width].

    Reads x and y, both [T, layers x width].
    """

    norm: Norm
    layers: int
    width: int
    scale: float
    weight: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.EMBED

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.weight,)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        elements = rows.count * self.layers * self.width
        return OpCost(3 * elements * size + self.width * FLOAT32, (NORM_FLOPS + 3) * elements)

    def row_bytes(self, size: int) -> int:
        """See Op: both that are read, y scaled, in float32 and normed, and the sum."""
        return self.layers * self.width * (4 * size + 2 * FLOAT32)

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        normaliser = Normaliser(self.norm.kind, self.norm.eps, scale_of(self.norm, self.weight, weights))
        scale, width, shrunk = self.scale, self.width, sqrt(0.5)

        def run(step: Step, x: Tensor, y: Tensor) -> Tensor:
            normed = normaliser((y * scale).view(len(y), -1, width))
            return (x + normed.flatten(1)) * shrunk

        return run
