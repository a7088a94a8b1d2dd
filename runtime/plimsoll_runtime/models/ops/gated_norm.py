"""A root mean square norm of what a gate opens, or opened after it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, StepRows
from plimsoll_runtime.models.ops.normalise import FLOPS
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """norm(x silu(g)) w, or norm(x) w silu(g) where the gate comes `after`; in float32. Reads x and g, `width` wide.

    Each of `groups` is normed by itself. `weight` [width], or [width / groups] for all groups alike.
    """

    eps: float
    width: int
    groups: int
    weight: Weight
    reads: Values
    writes: Values
    after: bool = False
    kind: OpKind = OpKind.NORM

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.weight,)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        elements = rows.count * self.width
        return OpCost(3 * elements * size + self.weight.shape[0] * FLOAT32, (FLOPS + 2) * elements)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return self.width * (5 * FLOAT32 + size)

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        eps, after, shape = self.eps, self.after, (self.groups, self.width // self.groups)
        weight = weights.read(self.weight).float().view(-1, shape[1])

        def run(step: Step, x: Tensor, gate: Tensor) -> Tensor:
            wide, opened = x.float(), functional.silu(gate.float())
            if not after:
                wide = wide * opened
            normed = functional.rms_norm(wide.reshape(-1, *shape), (shape[1],), None, eps) * weight
            result = normed.flatten(1)
            return (result * opened if after else result).to(x.dtype)

        return run
