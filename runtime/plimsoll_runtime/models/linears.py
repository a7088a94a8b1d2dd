"""The tensors of a product, which files have under one name or under one for each of its parts."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.models.ops.weight import Order, Weight

Parts = tuple[tuple[Weight, ...], tuple[Weight, ...]]
"""Matrices, one below the other, and as many biases or none."""


@dataclass(frozen=True, slots=True)
class Linears:
    """Those whose names begin with `prefix`, of a family whose files are `transposed` or not."""

    prefix: str
    transposed: bool

    def parts(
        self, names: tuple[str, ...], rows: tuple[int, ...], inputs: int, *, biased: bool, order: Order | None = None
    ) -> Parts:
        """Of `rows` outputs each, stored under as many names or, all of them, under one."""
        outputs = rows if len(names) == len(rows) else (sum(rows),)
        stored = list(zip(names, outputs, strict=True))
        matrices = [
            Weight(f"{self.prefix}.{name}.weight", (n, inputs), self.transposed, order=order) for name, n in stored
        ]
        biases = [self.vector(f"{name}.bias", n, order) for name, n in stored if biased]
        return tuple(matrices), tuple(biases)

    def vector(self, name: str, size: int, order: Order | None = None) -> Weight:
        """One number for each output."""
        return Weight(f"{self.prefix}.{name}", (size,), order=order)
