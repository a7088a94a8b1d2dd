"""Matrix products, with the activation or scale of their results, and the tensors that make up their weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_kernels.activation.op import gated
from plimsoll_kernels.activation.reference import ACTIVATIONS
from plimsoll_kernels.cpu.op_records import Into, ProductRecord
from plimsoll_runtime.models.layers.linear import Linear
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows, product_cost
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues, UnsupportedOpError, activation_of
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Order, Weight, Weights


@dataclass(frozen=True, slots=True)
class Product(Op):
    """y = activation(x W^T + b), cut to [-clip, clip]; W is `parts` one below the other, and b, if any, `biases`."""

    kind: OpKind
    parts: tuple[Weight, ...]
    biases: tuple[Weight, ...]
    reads: Values
    writes: Values
    activation: Activation | None = None
    clip: float | None = None
    cpu_fields: ClassVar = ("parts", "biases", "activation", "clip")
    cpu_reads: ClassVar = CpuReads.OPERANDS

    @property
    def inputs(self) -> int:
        """Width of x."""
        return self.parts[0].shape[1]

    @property
    def outputs(self) -> int:
        """Width of y."""
        return sum(part.shape[0] for part in self.parts)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        return product_cost(rows.count, self.inputs, self.outputs, size, biased=bool(self.biases))

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return self.outputs * size * (1 if self.activation is None else 2)

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        linear = Linear(weights.joined(self.parts), weights.joined(self.biases) if self.biases else None)
        clip, activation = self.clip, None if self.activation is None else ACTIVATIONS[self.activation]

        def run(step: Step, x: Tensor) -> Tensor:
            y = linear(x)
            if activation is not None:
                y = activation(y)
            return y if clip is None else y.clamp(-clip, clip)

        return run

    def check_cpu(self) -> None:
        """See Op."""
        activation_of(self.activation)

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """See Op: with the sum behind it, or a norm and a sum."""
        plain = self.activation is None and self.clip is None
        match values.following(2):
            case [Add() as add, *_] if plain and add.is_in_place(values, self.writes, 2):
                source = yield from values.operands(self.reads[0], self.inputs)
                target = values.floats(add.reads[0], self.outputs)
                values.at += 2
                values.changed(add.writes[0], add.width, target)
                yield self._cpu_op(source, target, Into.SUM, add.scale)
            case [Normalise() as norm, Add() as add] if (
                plain and norm.reads == norm.writes == self.writes and add.is_in_place(values, self.writes, 3)
            ):
                yield from self._by_itself(values)
                yield norm.added(values, add)
            case _:
                yield from self._by_itself(values)

    def _by_itself(self, values: CpuValues) -> Iterator[CpuOp]:
        source = yield from values.operands(self.reads[0], self.inputs)
        values.at += 1
        [name] = self.writes
        into = Into.OPERANDS if values.is_multiplied(name) else Into.FLOATS
        if (self.activation if into is Into.FLOATS else self.clip) is not None:
            raise UnsupportedOpError("activates what goes to products alone, and cuts what does not")
        target = values.written(name, self.outputs, operands=into is not Into.FLOATS, apart=[source])
        yield self._cpu_op(source, target, into)

    def _cpu_op(self, source: int, target: int, into: Into, scale: float = 1.0) -> CpuOp:
        def record(weights: CpuWeights) -> ProductRecord:
            return ProductRecord(
                linear=weights.linear(self.parts, self.biases),
                source=source,
                target=target,
                into=into,
                activation=activation_of(self.activation),
                scale=scale,
                limit=inf if self.clip is None else self.clip,
            )

        return CpuOp(self.kind, record)


@dataclass(frozen=True, slots=True)
class GatedProduct(Op):
    """y = activation(x G^T + g) * (x U^T + u): the gate and what it opens in one product (Shazeer, 2020).

    `parts` are G and U, or one that has G above U; `biases` alike.
    """

    parts: tuple[Weight, ...]
    biases: tuple[Weight, ...]
    activation: Activation
    reads: Values
    writes: Values
    kind: OpKind = OpKind.GATE_UP
    cpu_fields: ClassVar = ("parts", "biases", "activation")
    cpu_reads: ClassVar = CpuReads.OPERANDS

    @property
    def inputs(self) -> int:
        """Width of x."""
        return self.parts[0].shape[1]

    @property
    def outputs(self) -> int:
        """Width of y."""
        return sum(part.shape[0] for part in self.parts) // 2

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: what leaves is half as wide as the product."""
        both = product_cost(rows.count, self.inputs, 2 * self.outputs, size, biased=bool(self.biases))
        return both + OpCost(-rows.count * self.outputs * size)

    def row_bytes(self, size: int) -> int:
        """See Op: the product, the opened gate, and both multiplied."""
        return 4 * self.outputs * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        linear = Linear(weights.joined(self.parts), weights.joined(self.biases) if self.biases else None)
        name, activation = self.activation, ACTIVATIONS[self.activation]

        def run(step: Step, x: Tensor) -> Tensor:
            gate_up = linear(x)
            if x.is_cuda:
                return gated(gate_up, name)
            gate, up = torch.chunk(gate_up, 2, dim=-1)
            return activation(gate) * up

        return run

    def check_cpu(self) -> None:
        """See Op."""
        activation_of(self.activation)

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """See Op."""
        source = yield from values.operands(self.reads[0], self.inputs)
        values.at += 1
        [name] = self.writes
        if not values.is_multiplied(name):
            raise UnsupportedOpError("gives what gates open to products alone")
        target = values.written(name, self.outputs, operands=True, apart=[source])

        def record(weights: CpuWeights) -> ProductRecord:
            return ProductRecord(
                linear=weights.gated_linear(self.parts, self.biases),
                source=source,
                target=target,
                into=Into.GATED,
                activation=activation_of(self.activation),
                scale=1.0,
                limit=inf,
            )

        yield CpuOp(self.kind, record)


Parts = tuple[tuple[Weight, ...], tuple[Weight, ...]]
"""Matrices, one below the other, and as many biases or none."""


@dataclass(frozen=True, slots=True)
class Linears:
    """One layer's, whose names begin with `prefix`; `transposed`: the files store matrices as [inputs, outputs]."""

    prefix: str
    transposed: bool

    def parts(
        self, names: tuple[str, ...], rows: tuple[int, ...], inputs: int, *, biased: bool, order: Order | None = None
    ) -> Parts:
        """Of `rows` outputs each, stored under as many names or, all of them, under one."""
        outputs = rows if len(names) == len(rows) else (sum(rows),)
        stored = list(zip(names, outputs, strict=True))
        matrices = [self.matrix(name, n, inputs, order) for name, n in stored]
        biases = [self.vector(f"{name}.bias", n, order) for name, n in stored if biased]
        return tuple(matrices), tuple(biases)

    def product(
        self, kind: OpKind, name: str, outputs: int, inputs: int, values: tuple[str, str], *, biased: bool
    ) -> Product:
        """The second of two values as the product of the first and one matrix."""
        reads, writes = values
        return Product(kind, *self.parts((name,), (outputs,), inputs, biased=biased), (reads,), (writes,))

    def matrix(self, name: str, outputs: int, inputs: int, order: Order | None = None) -> Weight:
        """Stored as `name`.weight."""
        return Weight(f"{self.prefix}.{name}.weight", (outputs, inputs), self.transposed, order)

    def vector(self, name: str, size: int, order: Order | None = None) -> Weight:
        """One number for each output, stored as `name`."""
        return Weight(f"{self.prefix}.{name}", (size,), order=order)
