"""The tensors of a product, which files have under one name or under one for each of its parts."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.product import Product
from plimsoll_runtime.models.ops.weight import Order, Weight

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
