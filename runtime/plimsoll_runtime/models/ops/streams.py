"""One row of hidden states to several streams of it, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.cost import OpCost, StepRows
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight

LEAST = 1e-5
"""Of a mean square, where it is divided by."""
FLOPS = 5
"""For each element: square, add, multiply and divide, and again add."""


@dataclass(frozen=True, slots=True)
class Spread:
    """x and, behind it, each `width` columns of y as large as x is in the mean of their squares.

    Reads x [T, width] and y [T, (streams - 1) x width], writes [T, streams x width].
    """

    width: int
    streams: int
    reads: Values
    writes: Values
    kind: OpKind = OpKind.EMBED

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        elements = rows.count * self.streams * self.width
        return OpCost(2 * elements * size, FLOPS * elements)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 4 * self.streams * self.width * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        width = self.width

        def run(step: Step, x: Tensor, y: Tensor) -> Tensor:
            return torch.cat([x, as_large(x[:, None], y.view(len(y), -1, width)).flatten(1)], dim=1)

        return run


@dataclass(frozen=True, slots=True)
class Average:
    """The mean of the values that are read, all as large as the first. Each is [T, width]."""

    width: int
    reads: Values
    writes: Values
    kind: OpKind = OpKind.NORM

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        elements = rows.count * self.width
        return OpCost((len(self.reads) + 1) * elements * size, FLOPS * len(self.reads) * elements)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 4 * len(self.reads) * self.width * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""

        def run(step: Step, first: Tensor, *others: Tensor) -> Tensor:
            return torch.stack([first, *(as_large(first, other) for other in others)]).mean(dim=0)

        return run


@dataclass(frozen=True, slots=True)
class AddToOthers:
    """Streams, to each of which but the first y is added. Reads [T, streams x width] and y [T, width]."""

    width: int
    streams: int
    reads: Values
    writes: Values
    kind: OpKind = OpKind.DOWN

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        elements = rows.count * self.streams * self.width
        return OpCost(2 * elements * size, elements)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 2 * self.streams * self.width * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        width = self.width

        def run(step: Step, streams: Tensor, added: Tensor) -> Tensor:
            others = streams[:, width:].view(len(streams), -1, width) + added[:, None]
            return torch.cat([streams[:, :width], others.flatten(1)], dim=1)

        return run


def as_large(target: Tensor, x: Tensor) -> Tensor:
    """x [..., D], scaled so that the mean of its squares is that of the target's."""
    size = target.square().mean(dim=-1, keepdim=True).sqrt()
    own = x.square().mean(dim=-1, keepdim=True).clamp(min=LEAST).sqrt()
    return x * size / own
