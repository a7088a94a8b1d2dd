"""Hidden states in several streams, of which a layer computes one and corrects all (AltUp: Baykal et al., 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from plimsoll_runtime.models.linear import Linear
from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.cost import OpCost, StepRows, product_cost
from plimsoll_runtime.models.ops.normalise import Normaliser, read, scale_of
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class Predict:
    """Each of N streams plus a sum of all, whose weights the active one says; and the active one by itself.

    Reads and writes [T, N x hidden]; `coefficients` [N x N, N] times what `modes_of` says of the active stream.
    """

    norm: Norm
    active: int
    norm_weight: Weight
    router: Weight
    coefficients: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.NORM

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.norm_weight, self.router, self.coefficients)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: streams in and out, and two small products on the way."""
        streams, hidden = self.router.shape
        mixed = OpCost(2 * rows.count * streams * hidden * size, 2 * rows.count * streams * streams * hidden)
        small = product_cost(rows.count, streams, streams * streams, size, biased=False)
        return product_cost(rows.count, hidden, streams, size, biased=False) + small + mixed

    def row_bytes(self, size: int) -> int:
        """See Op: streams, their mixture, and the sum of both."""
        return 3 * prod(self.router.shape) * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        modes = modes_of(self.norm, self.norm_weight, self.router, weights)
        linear = Linear(weights.read(self.coefficients))
        count, active = self.router.shape[0], self.active

        def run(step: Step, streams: Tensor) -> tuple[Tensor, Tensor]:
            each = streams.view(len(streams), count, -1)
            coefficients = linear(modes(each[:, active])).view(len(streams), count, count)
            predicted = torch.baddbmm(each, coefficients, each)
            return predicted.flatten(1), predicted[:, active]

        return run


@dataclass(frozen=True, slots=True)
class Correct:
    """Each predicted stream plus its share of what a layer has changed in the active one; and the active one then.

    Reads predictions [T, N x hidden] and the active stream [T, hidden], writes alike; `coefficients` [N, N] times what
    `modes_of` says of the active stream. `scale` [hidden] multiplies the active one that is written by itself.
    """

    norm: Norm
    active: int
    norm_weight: Weight
    router: Weight
    coefficients: Weight
    scale: Weight | None
    reads: Values
    writes: Values
    kind: OpKind = OpKind.NORM

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        scale = () if self.scale is None else (self.scale,)
        return (self.norm_weight, self.router, self.coefficients, *scale)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: streams in and out, and two small products on the way."""
        streams, hidden = self.router.shape
        corrected = OpCost(2 * rows.count * (streams + 1) * hidden * size, 2 * rows.count * streams * hidden)
        small = product_cost(rows.count, streams, streams, size, biased=False)
        return product_cost(rows.count, hidden, streams, size, biased=False) + small + corrected

    def row_bytes(self, size: int) -> int:
        """See Op: predictions, what is added to them, and the sum of both."""
        return 3 * prod(self.router.shape) * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        modes = modes_of(self.norm, self.norm_weight, self.router, weights)
        linear = Linear(weights.read(self.coefficients))
        count, active, scale = self.router.shape[0], self.active, read(self.scale, weights)

        def run(step: Step, predicted: Tensor, activated: Tensor) -> tuple[Tensor, Tensor]:
            each = predicted.view(len(predicted), count, -1)
            changed = activated - each[:, active]
            shares = linear(modes(activated)) + 1.0
            corrected = torch.addcmul(each, shares[:, :, None], changed[:, None])
            first = corrected[:, active]
            return corrected.flatten(1), first if scale is None else (first * scale).to(first.dtype)

        return run


def modes_of(norm: Norm, norm_weight: Weight, router: Weight, weights: Weights) -> Callable[[Tensor], Tensor]:
    """tanh(W norm(x) / hidden): [T, hidden] -> [T, N], a number for each stream. The norm's [hidden]; W [N, hidden]."""
    normaliser = Normaliser(norm.kind, norm.eps, scale_of(norm, norm_weight, weights))
    linear, scale = Linear(weights.read(router)), 1.0 / router.shape[1]

    def run(x: Tensor) -> Tensor:
        return torch.tanh(linear(normaliser(x) * scale).float()).to(x.dtype)

    return run
