"""Matrix products with activation or clipping, and the weights that they are made of."""

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
from plimsoll_runtime.models.ops.weight import ByGroup, Weight, Weights


@dataclass(frozen=True, slots=True)
class Product(Op):
    """y = activation(x W^T + b), clipped to [-clip, clip]. W is `parts` concatenated by rows; b is `biases`, if any."""

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
        """Columns of x."""
        return self.parts[0].shape[1]

    @property
    def outputs(self) -> int:
        """Columns of y."""
        return sum(part.shape[0] for part in self.parts)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        return product_cost(rows.count, self.inputs, self.outputs, size, biased=bool(self.biases))

    def row_bytes(self, size: int) -> int:
        return self.outputs * size * (1 if self.activation is None else 2)

    def compiled(self, weights: Weights) -> Run:
        linear = Linear(weights.joined(self.parts), weights.joined(self.biases) if self.biases else None)
        clip, activation = self.clip, None if self.activation is None else ACTIVATIONS[self.activation]

        def run(step: Step, x: Tensor) -> Tensor:
            y = linear(x)
            if activation is not None:
                y = activation(y)
            return y if clip is None else y.clamp(-clip, clip)

        return run

    def check_cpu(self) -> None:
        activation_of(self.activation)

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Lower the op, together with a following sum, or norm and sum."""
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
            raise UnsupportedOpError(
                "supports an activation only if all later readers of the result are matrix products, and clipping only "
                "otherwise"
            )
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
    """y = activation(x G^T + g) * (x U^T + u): gate and up projection in one product (Shazeer, 2020).

    `parts` are G and U, or one tensor with G above U; `biases` likewise.
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
        """Columns of x."""
        return self.parts[0].shape[1]

    @property
    def outputs(self) -> int:
        """Columns of y."""
        return sum(part.shape[0] for part in self.parts) // 2

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost. The result has half the columns of the product."""
        both = product_cost(rows.count, self.inputs, 2 * self.outputs, size, biased=bool(self.biases))
        return both + OpCost(-rows.count * self.outputs * size)

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the product, the activated gate, and the result."""
        return 4 * self.outputs * size

    def compiled(self, weights: Weights) -> Run:
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
        activation_of(self.activation)

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        source = yield from values.operands(self.reads[0], self.inputs)
        values.at += 1
        [name] = self.writes
        if not values.is_multiplied(name):
            raise UnsupportedOpError("requires that only matrix products read the result of gated products")
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
"""Matrices that are concatenated by rows, and as many biases or none."""


@dataclass(frozen=True, slots=True)
class Linears:
    """Weights of one layer, whose names begin with `prefix`. `transposed`: the files store matrices as [inputs,
    outputs].
    """

    prefix: str
    transposed: bool

    def parts(
        self, names: tuple[str, ...], rows: tuple[int, ...], inputs: int, *, biased: bool, order: ByGroup | None = None
    ) -> Parts:
        """Return the matrices and biases of parts with `rows` outputs each, stored under one name each or all under one
        name.
        """
        outputs = rows if len(names) == len(rows) else (sum(rows),)
        stored = list(zip(names, outputs, strict=True))
        matrices = [self.matrix(name, n, inputs, order) for name, n in stored]
        biases = [self.vector(f"{name}.bias", n, order) for name, n in stored if biased]
        return tuple(matrices), tuple(biases)

    def product(
        self, kind: OpKind, name: str, outputs: int, inputs: int, values: tuple[str, str], *, biased: bool
    ) -> Product:
        """Return the product of a value with one matrix. `values` are the names of input and output."""
        reads, writes = values
        return Product(kind, *self.parts((name,), (outputs,), inputs, biased=biased), (reads,), (writes,))

    def matrix(self, name: str, outputs: int, inputs: int, order: ByGroup | None = None) -> Weight:
        """Return the matrix stored as `name`.weight."""
        return Weight(f"{self.prefix}.{name}.weight", (outputs, inputs), self.transposed, order)

    def vector(self, name: str, size: int, order: ByGroup | None = None) -> Weight:
        """Return the vector stored as `name`, with one number for each output."""
        return Weight(f"{self.prefix}.{name}", (size,), order=order)
