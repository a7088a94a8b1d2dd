"""Columns multiplied by numbers: of the config, or of the files."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, repeat

import torch
from torch import Tensor

from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight


@dataclass(frozen=True, slots=True)
class Scale:
    """The next `widths` columns each times one of `factors`; with one factor all of them."""

    widths: tuple[int, ...]
    factors: tuple[float, ...]
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STATE

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        elements = rows.count * sum(self.widths)
        return OpCost(2 * elements * size, elements)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 2 * sum(self.widths) * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        if len(self.factors) == 1:
            factor = self.factors[0]
            return lambda step, x: x * factor
        each = chain.from_iterable(map(repeat, self.factors, self.widths))
        factors = torch.tensor(list(each), device=weights.device)

        def run(step: Step, x: Tensor) -> Tensor:
            return (x * factors).to(x.dtype)

        return run


@dataclass(frozen=True, slots=True)
class ScaleAll:
    """All columns times one number of the files. `weight` [1]."""

    width: int
    weight: Weight
    reads: Values
    writes: Values
    kind: OpKind

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.weight,)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        elements = rows.count * self.width
        return OpCost(2 * elements * size, elements)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 2 * self.width * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        factor = weights.read(self.weight)

        def run(step: Step, x: Tensor) -> Tensor:
            return x * factor.to(x.dtype)

        return run
