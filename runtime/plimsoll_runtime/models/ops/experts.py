"""Mixture-of-experts MLPs, each over the rows routed to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_kernels.activation.op import gated
from plimsoll_kernels.activation.reference import ACTIVATIONS
from plimsoll_kernels.cpu.experts import ExpertSizes, PackedExperts
from plimsoll_kernels.cpu.op_records import ExpertsRecord, GateRecord
from plimsoll_runtime.models.layers.linear import Groups, Linear, grouped_linear
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows, product_cost
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuValues, UnsupportedOpError, activation_of, check_known
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.feed_forward import ClampedGate


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """The weighted sum of the `chosen` experts of each row.

    Reads states [T, hidden], weights [T, chosen] and expert numbers [T, chosen].

    - `gate_up`: each expert's gate and up matrices, or one with the gate above the other; `down` [hidden, inner].
    - `gate_up_biases`, `down_biases`: one for each of these matrices, or none. A rank other than 0 has only the first.
    - `clamped`: replaces the activation of gates.
    - `weighs_inputs`: weights multiply the states instead of the results.
    - `gated`: if False, `gate_up` has no gate, and the activation applies to its result.
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
    cpu_fields: ClassVar = (
        *("chosen", "gate_up", "down", "activation", "weighs_inputs", "gated", "clamped"),
        *("gate_up_biases", "down_biases"),
    )

    @property
    def hidden(self) -> int:
        """Columns of the states."""
        return self.down[0].shape[0]

    @property
    def inner(self) -> int:
        """Columns between an expert's two products."""
        return self.down[0].shape[1]

    @property
    def opening(self) -> int:
        """Columns of an expert's first product: gate and up projection, or only the latter."""
        return 2 * self.inner if self.gated else self.inner

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost for rows that choose experts at random. Experts without rows are not read."""
        experts = len(self.down)
        read = rows.experts_read(experts, self.chosen)
        weights = (self.opening + self.inner) * self.hidden
        biases = (self.opening * bool(self.gate_up_biases) + self.hidden * bool(self.down_biases)) * FLOAT32
        passed = 2 * self.hidden + self.chosen * 2 * self.inner
        return OpCost(
            round(read * weights) * size + round(read * biases) + rows.count * (passed * size + self.chosen * FLOAT32),
            2 * rows.count * self.chosen * weights,
        )

    def row_bytes(self, size: int) -> int:
        """Return the bytes of a row: for each chosen expert its states, products, activation, and its result twice."""
        return self.chosen * (3 * self.hidden + 5 * self.inner) * size

    def compiled(self, weights: Weights) -> Run:
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
        """Return the function that applies gates: [rows, 2 inner] -> [rows, inner].

        Without gates it is the activation of [rows, inner].
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

    def check_cpu(self) -> None:
        activation_of(self.activation)
        if self.clamped is not None:
            check_known(self.clamped, "alpha", "limit")
            if not self.gated or self.clamped.limit <= 0:
                raise UnsupportedOpError("supports clamped gates only with a positive limit")

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Lower the op, together with a following sum if that can be computed in place."""
        states, *chosen = self.reads
        source = values.floats(states, self.hidden)
        shares, numbers = (values.floats(name, self.chosen) for name in chosen)
        match values.following(1):
            case [Add() as add] if add.is_in_place(values, self.writes, 2):
                target, adds, scale = values.floats(add.reads[0], self.hidden), True, add.scale
                values.at += 2
                values.changed(add.writes[0], add.width, target)
            case _:
                values.at += 1
                target = values.written(self.writes[0], self.hidden, operands=False, apart=[source])
                adds, scale = False, 1.0

        def record(weights: CpuWeights) -> ExpertsRecord:
            packed = self._packed(weights)
            return ExpertsRecord(
                gate_up=packed.gate_up,
                down=packed.down,
                source=source,
                shares=shares,
                numbers=numbers,
                target=target,
                experts=len(self.down),
                chosen=self.chosen,
                activation=activation_of(self.activation),
                adds=adds,
                gated=self.gated,
                weighs_inputs=self.weighs_inputs,
                scale=scale,
                alpha=0.0 if self.clamped is None else self.clamped.alpha,
                limit=0.0 if self.clamped is None else self.clamped.limit,
            )

        yield CpuOp(self.kind, record)

    def _packed(self, weights: CpuWeights) -> PackedExperts:
        reader = weights.reader

        def gate_up(number: int) -> Sequence[Tensor]:
            parts = self.gate_up[number]
            return weights.gate_up(parts) if self.gated else [reader.joined(parts)]

        biases = None
        if self.gate_up_biases:
            first = torch.stack([reader.joined(parts) for parts in self.gate_up_biases])
            second = [reader.read(bias) for bias in self.down_biases]
            biases = first, torch.stack(second) if second else torch.zeros(len(self.down), self.hidden)
        packed = PackedExperts(
            weights.kernels,
            ExpertSizes(len(self.down), self.hidden, self.inner),
            gate_up,
            lambda number: reader.read(self.down[number]),
            weights.dtype,
            weights.places,
            gated=self.gated,
            biases=biases,
        )
        weights.kept.append(packed)
        return packed


@dataclass(frozen=True, slots=True)
class Gate(Op):
    """y sigmoid(x W^T) with one gate value for each row. `weight` [1, hidden]; reads x and y."""

    weight: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.DOWN
    cpu_fields: ClassVar = ("weight",)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost without reading y, which counts for the op that writes it."""
        return product_cost(rows.count, self.weight.shape[1], 1, size, biased=False)

    def row_bytes(self, size: int) -> int:
        return (2 * self.weight.shape[1] + 2) * size

    def compiled(self, weights: Weights) -> Run:
        linear = Linear(weights.read(self.weight))

        def run(step: Step, x: Tensor, y: Tensor) -> Tensor:
            return y * linear(x).sigmoid()

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        states, gated = self.reads
        width = self.weight.shape[1]
        source, target = values.floats(states, width), values.floats(gated, width)
        if self.writes != (gated,) or states == gated:
            raise UnsupportedOpError("supports gates only in place and by another value")
        values.at += 1
        values.changed(gated, width, target)

        def record(weights: CpuWeights) -> GateRecord:
            weight = weights.floats(self.weight)
            return GateRecord(weight=weight, source=source, target=target, inputs=width, width=width)

        yield CpuOp(self.kind, record)
