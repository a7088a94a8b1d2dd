"""Ops of AltUp's streams of hidden states (Baykal et al., 2023), and of per-layer inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod, sqrt

import torch
from torch import Tensor

from plimsoll_runtime.models.layers.linear import Linear
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows, product_cost
from plimsoll_runtime.models.ops.norm import FLOPS as NORM_FLOPS
from plimsoll_runtime.models.ops.norm import Normaliser, read, scale_of
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.norm import Norm

LEAST = 1e-5
"""Lower bound of a mean square that is a divisor."""
FLOPS = 5
"""Operations for each element: square, add, multiply and divide, and again add."""


@dataclass(frozen=True, slots=True)
class Spread(Op):
    """x followed by the groups of `width` columns of y, each scaled to x's mean square.

    Reads x [T, width] and y [T, (streams - 1) x width], writes [T, streams x width].
    """

    width: int
    streams: int
    reads: Values
    writes: Values
    kind: OpKind = OpKind.EMBED

    def cost(self, rows: StepRows, size: int) -> OpCost:
        elements = rows.count * self.streams * self.width
        return OpCost(2 * elements * size, FLOPS * elements)

    def row_bytes(self, size: int) -> int:
        return 4 * self.streams * self.width * size

    def compiled(self, weights: Weights) -> Run:
        width = self.width

        def run(step: Step, x: Tensor, y: Tensor) -> Tensor:
            return torch.cat([x, as_large(x[:, None], y.view(len(y), -1, width)).flatten(1)], dim=1)

        return run


@dataclass(frozen=True, slots=True)
class Average(Op):
    """The mean of its inputs, each scaled to the first one's mean square. Each is [T, width]."""

    width: int
    reads: Values
    writes: Values
    kind: OpKind = OpKind.NORM

    def cost(self, rows: StepRows, size: int) -> OpCost:
        elements = rows.count * self.width
        return OpCost((len(self.reads) + 1) * elements * size, FLOPS * len(self.reads) * elements)

    def row_bytes(self, size: int) -> int:
        return 4 * len(self.reads) * self.width * size

    def compiled(self, weights: Weights) -> Run:
        def run(step: Step, first: Tensor, *others: Tensor) -> Tensor:
            return torch.stack([first, *(as_large(first, other) for other in others)]).mean(dim=0)

        return run


@dataclass(frozen=True, slots=True)
class AddToOthers(Op):
    """Adds y to all streams except the first. Reads [T, streams x width] and y [T, width]."""

    width: int
    streams: int
    reads: Values
    writes: Values
    kind: OpKind = OpKind.DOWN

    def cost(self, rows: StepRows, size: int) -> OpCost:
        elements = rows.count * self.streams * self.width
        return OpCost(2 * elements * size, elements)

    def row_bytes(self, size: int) -> int:
        return 2 * self.streams * self.width * size

    def compiled(self, weights: Weights) -> Run:
        width = self.width

        def run(step: Step, streams: Tensor, added: Tensor) -> Tensor:
            others = streams[:, width:].view(len(streams), -1, width) + added[:, None]
            return torch.cat([streams[:, :width], others.flatten(1)], dim=1)

        return run


def as_large(target: Tensor, x: Tensor) -> Tensor:
    """Return x [..., D] scaled to the target's mean square."""
    size = target.square().mean(dim=-1, keepdim=True).sqrt()
    own = x.square().mean(dim=-1, keepdim=True).clamp(min=LEAST).sqrt()
    return x * size / own


@dataclass(frozen=True, slots=True)
class Predict(Op):
    """Adds to each of N streams a weighted sum of all N. Also writes the active stream as a value of its own.

    Reads and writes [T, N x hidden]. The weights of the sums are `coefficients` [N x N, N] times the `modes_of` the
    active stream.
    """

    norm: Norm
    active: int
    norm_weight: Weight
    router: Weight
    coefficients: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.NORM

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost: streams in and out, and two small products."""
        streams, hidden = self.router.shape
        mixed = OpCost(2 * rows.count * streams * hidden * size, 2 * rows.count * streams * streams * hidden)
        small = product_cost(rows.count, streams, streams * streams, size, biased=False)
        return product_cost(rows.count, hidden, streams, size, biased=False) + small + mixed

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the streams, their mixture, and the sum of both."""
        return 3 * prod(self.router.shape) * size

    def compiled(self, weights: Weights) -> Run:
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
class Correct(Op):
    """Adds to each predicted stream its share of the layer's change of the active one. Also writes the active stream.

    Reads predictions [T, N x hidden] and the layer's result, the active stream [T, hidden], and writes the same shapes.
    The shares are 1 + `coefficients` [N, N] times the `modes_of` the active stream. `scale` [hidden] multiplies the
    separately written active stream.
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

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost: streams in and out, and two small products."""
        streams, hidden = self.router.shape
        corrected = OpCost(2 * rows.count * (streams + 1) * hidden * size, 2 * rows.count * streams * hidden)
        small = product_cost(rows.count, streams, streams, size, biased=False)
        return product_cost(rows.count, hidden, streams, size, biased=False) + small + corrected

    def row_bytes(self, size: int) -> int:
        """Return the bytes of predictions, their corrections, and the sum of both."""
        return 3 * prod(self.router.shape) * size

    def compiled(self, weights: Weights) -> Run:
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
    """Return the function tanh(W norm(x) / hidden): [T, hidden] -> [T, N], with W [N, hidden]."""
    normaliser = Normaliser(norm.kind, norm.eps, scale_of(norm, norm_weight, weights))
    linear, scale = Linear(weights.read(router)), 1.0 / router.shape[1]

    def run(x: Tensor) -> Tensor:
        return torch.tanh(linear(normaliser(x) * scale).float()).to(x.dtype)

    return run


@dataclass(frozen=True, slots=True)
class JoinInputs(Op):
    """(x + norm(scale * y)) / sqrt(2), with a separate norm of each `width` columns of y. `weight` [width].

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

    def cost(self, rows: StepRows, size: int) -> OpCost:
        elements = rows.count * self.layers * self.width
        return OpCost(3 * elements * size + self.width * FLOAT32, (NORM_FLOPS + 3) * elements)

    def row_bytes(self, size: int) -> int:
        """Return the bytes of both inputs, y scaled, in float32 and normalised, and the sum."""
        return self.layers * self.width * (4 * size + 2 * FLOAT32)

    def compiled(self, weights: Weights) -> Run:
        normaliser = Normaliser(self.norm.kind, self.norm.eps, scale_of(self.norm, self.weight, weights))
        scale, width, shrunk = self.scale, self.width, sqrt(0.5)

        def run(step: Step, x: Tensor, y: Tensor) -> Tensor:
            normed = normaliser((y * scale).view(len(y), -1, width))
            return (x + normed.flatten(1)) * shrunk

        return run
