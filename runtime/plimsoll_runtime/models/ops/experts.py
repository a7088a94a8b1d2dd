"""Experts: gated MLPs, each over the rows that have chosen it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_kernels.activation.op import gated
from plimsoll_kernels.activation.reference import ACTIVATIONS
from plimsoll_runtime.models.layers.linear import Groups, Linear, grouped_linear
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows, product_cost
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.feed_forward import ClampedGate


@dataclass(frozen=True, slots=True)
class Experts:
    """The weighed sum of what the `chosen` experts of each row make of it.

    Reads states [T, hidden], weights [T, chosen] and numbers [T, chosen]. `gate_up` of each expert: a gate and what it
    opens, or one that has the gate above the other; `down` [hidden, inner] of each. Biases: one for each of these, or
    none. `clamped` opens gates instead of the activation. `weighs_inputs`: states are weighed instead of the results.
    Those that are not `gated` have what is activated in the place of a gate, and nothing that it opens.
    """

    chosen: int
    gate_up: tuple[tuple[Weight, ...], ...]
    down: tuple[Weight, ...]
    activation: Activation
    reads: Values
    writes: Values
    clamped: ClampedGate | None = None
    gate_up_biases: tuple[tuple[Weight, ...], ...] = ()
    down_biases: tuple[Weight, ...] = ()
    weighs_inputs: bool = False
    gated: bool = True
    kind: OpKind = OpKind.EXPERTS

    @property
    def hidden(self) -> int:
        """Width of states."""
        return self.down[0].shape[0]

    @property
    def inner(self) -> int:
        """Width of what a gate opens."""
        return self.down[0].shape[1]

    @property
    def opening(self) -> int:
        """Width of an expert's first product."""
        return 2 * self.inner if self.gated else self.inner

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        biases = (*(part for parts in self.gate_up_biases for part in parts), *self.down_biases)
        return (*(part for parts in self.gate_up for part in parts), *self.down, *biases)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: experts that no row has chosen are not read. Rows are taken to choose at random, each for itself."""
        experts = len(self.down)
        read = experts * (1.0 - (1.0 - self.chosen / experts) ** rows.count)
        weights = (self.opening + self.inner) * self.hidden
        biases = (self.opening + self.hidden) * FLOAT32 if self.down_biases else 0
        passed = 2 * self.hidden + self.chosen * 2 * self.inner
        return OpCost(
            round(read * weights) * size + round(read * biases) + rows.count * (passed * size + self.chosen * FLOAT32),
            2 * rows.count * self.chosen * weights,
        )

    def row_bytes(self, size: int) -> int:
        """See Op: for each chosen expert the states it takes, its products, what is opened, and its result twice."""
        return self.chosen * (3 * self.hidden + 5 * self.inner) * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        count = len(self.down)
        gate_up = grouped_linear(
            (weights.joined(parts) for parts in self.gate_up),
            count,
            [weights.joined(parts) for parts in self.gate_up_biases],
        )
        down = grouped_linear(
            (weights.read(weight) for weight in self.down), count, [weights.read(bias) for bias in self.down_biases]
        )
        opened = self._opened()
        weighs_inputs = self.weighs_inputs

        def run(step: Step, x: Tensor, shares: Tensor, numbers: Tensor) -> Tensor:
            groups = Groups(numbers, count)
            taken = groups.taken(x)
            if weighs_inputs:
                taken, shares = taken * groups.of_rows(shares).to(x.dtype), torch.ones_like(shares)
            return groups.summed(down(opened(gate_up(taken, groups)), groups), shares)

        return run

    def _opened(self) -> Callable[[Tensor], Tensor]:
        """Of gates and what they open, one behind the other in a row: [rows, 2 inner] -> [rows, inner].

        Without gates the activation of [rows, inner].
        """
        name, activation, clamped = self.activation, ACTIVATIONS[self.activation], self.clamped
        if not self.gated:
            return activation

        def run(gates: Tensor) -> Tensor:
            if gates.is_cuda and clamped is None:
                return gated(gates, name)
            gate, up = torch.chunk(gates, 2, dim=-1)
            if clamped is None:
                return activation(gate) * up
            gate, up = gate.clamp(max=clamped.limit), up.clamp(-clamped.limit, clamped.limit)
            return gate * torch.sigmoid(gate * clamped.alpha) * (up + 1)

        return run


@dataclass(frozen=True, slots=True)
class Gate:
    """y sigmoid(x W^T): one number a row says how much of y passes. `weight` [1, hidden]; reads x and y."""

    weight: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.DOWN

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return (self.weight,)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: y is read by whoever has made it."""
        return product_cost(rows.count, self.weight.shape[1], 1, size, biased=False)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return (2 * self.weight.shape[1] + 2) * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        linear = Linear(weights.read(self.weight))

        def run(step: Step, x: Tensor, y: Tensor) -> Tensor:
            return y * linear(x).sigmoid()

        return run
