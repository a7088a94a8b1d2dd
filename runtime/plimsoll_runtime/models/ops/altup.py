"""Hidden states in several streams, of which a layer computes one and corrects all (AltUp: Baykal et al., 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
class Modes:
    """tanh(W norm(x) / hidden): a number for each of N streams. `norm_weight` [hidden], `router` [N, hidden]."""

    norm: Norm
    norm_weight: Weight
    router: Weight

    @property
    def streams(self) -> int:
        """How many there are."""
        return self.router.shape[0]

    @property
    def hidden(self) -> int:
        """Width of each."""
        return self.router.shape[1]

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.norm_weight, self.router)

    def compiled(self, weights: Weights) -> Callable[[Tensor], Tensor]:
        """[T, hidden] -> [T, N]."""
        normaliser = Normaliser(self.norm.kind, self.norm.eps, scale_of(self.norm, self.norm_weight, weights))
        linear, scale = Linear(weights.read(self.router)), 1.0 / self.hidden

        def run(x: Tensor) -> Tensor:
            return torch.tanh(linear(normaliser(x) * scale).float()).to(x.dtype)

        return run


@dataclass(frozen=True, slots=True)
class Predict:
    """Each of N streams plus a sum of all, whose weights the active one says; and the active one by itself.

    Reads and writes [T, N x hidden]; `coefficients` [N x N, N].
    """

    modes: Modes
    active: int
    coefficients: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.NORM

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (*self.modes.weights(), self.coefficients)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: streams in and out, and two small products on the way."""
        streams, hidden = self.modes.streams, self.modes.hidden
        mixed = OpCost(2 * rows.count * streams * hidden * size, 2 * rows.count * streams * streams * hidden)
        small = product_cost(rows.count, streams, streams * streams, size, biased=False)
        return product_cost(rows.count, hidden, streams, size, biased=False) + small + mixed

    def row_bytes(self, size: int) -> int:
        """See Op: streams, their mixture, and the sum of both."""
        return 3 * self.modes.streams * self.modes.hidden * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        modes, linear = self.modes.compiled(weights), Linear(weights.read(self.coefficients))
        count, active = self.modes.streams, self.active

        def run(step: Step, streams: Tensor) -> tuple[Tensor, Tensor]:
            each = streams.view(len(streams), count, -1)
            coefficients = linear(modes(each[:, active])).view(len(streams), count, count)
            predicted = torch.baddbmm(each, coefficients, each)
            return predicted.flatten(1), predicted[:, active]

        return run


@dataclass(frozen=True, slots=True)
class Correct:
    """Each predicted stream plus its share of what a layer has changed in the active one; and the active one then.

    Reads predictions [T, N x hidden] and the active stream [T, hidden], writes alike; `coefficients` [N, N]. `scale`
    [hidden] multiplies the active one that is written by itself.
    """

    modes: Modes
    active: int
    coefficients: Weight
    scale: Weight | None
    reads: Values
    writes: Values
    kind: OpKind = OpKind.NORM

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (*self.modes.weights(), self.coefficients, *(() if self.scale is None else (self.scale,)))

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: streams in and out, and two small products on the way."""
        streams, hidden = self.modes.streams, self.modes.hidden
        corrected = OpCost(2 * rows.count * (streams + 1) * hidden * size, 2 * rows.count * streams * hidden)
        small = product_cost(rows.count, streams, streams, size, biased=False)
        return product_cost(rows.count, hidden, streams, size, biased=False) + small + corrected

    def row_bytes(self, size: int) -> int:
        """See Op: predictions, what is added to them, and the sum of both."""
        return 3 * self.modes.streams * self.modes.hidden * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        modes, linear = self.modes.compiled(weights), Linear(weights.read(self.coefficients))
        count, active, scale = self.modes.streams, self.active, read(self.scale, weights)

        def run(step: Step, predicted: Tensor, activated: Tensor) -> tuple[Tensor, Tensor]:
            each = predicted.view(len(predicted), count, -1)
            changed = activated - each[:, active]
            shares = linear(modes(activated)) + 1.0
            corrected = torch.addcmul(each, shares[:, :, None], changed[:, None])
            first = corrected[:, active]
            return corrected.flatten(1), first if scale is None else (first * scale).to(first.dtype)

        return run
