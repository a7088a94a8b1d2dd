"""From an MLP's spec to its ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll_runtime.models.linears import Linears
from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.product import GatedProduct, Product
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.sparsify import Sparsify
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, PlainMlp

GATE, INNER = "gate", "inner"


@dataclass(frozen=True, slots=True)
class MlpComposer:
    """One layer's. States are `hidden` wide; `gate_up`: of a plain MLP the last of these names counts."""

    hidden: int
    gate_up: tuple[str, ...]
    down: str
    linears: Linears

    def ops(self, mlp: GatedMlp | PlainMlp, reads: str, writes: str) -> Iterator[Op]:
        """In their order."""
        if isinstance(mlp, PlainMlp):
            parts = self.linears.parts(self.gate_up[-1:], (mlp.inner,), self.hidden, biased=mlp.bias)
            yield Product(OpKind.GATE_UP, *parts, (reads,), (INNER,), mlp.activation)
        elif mlp.gate_scale != 1.0 or mlp.sparsity:
            yield from self._changed_gate(mlp, reads)
        else:
            parts = self.linears.parts(self.gate_up, (mlp.inner, mlp.inner), self.hidden, biased=mlp.bias)
            yield GatedProduct(*parts, mlp.activation, (reads,), (INNER,))
        yield self.linears.product(OpKind.DOWN, self.down, self.hidden, mlp.inner, (INNER, writes), biased=mlp.bias)
        if isinstance(mlp, GatedMlp) and mlp.scale != 1.0:
            yield Scale((self.hidden,), (mlp.scale,), (writes,), (writes,))

    def _changed_gate(self, mlp: GatedMlp, reads: str) -> Iterator[Op]:
        for name, writes in zip(self.gate_up, (GATE, INNER), strict=True):
            yield self.linears.product(OpKind.GATE_UP, name, mlp.inner, self.hidden, (reads, writes), biased=mlp.bias)
        if mlp.gate_scale != 1.0:
            yield Scale((mlp.inner,), (mlp.gate_scale,), (GATE,), (GATE,), OpKind.GATE_UP)
        if mlp.sparsity:
            yield Sparsify(mlp.inner, mlp.sparsity, (GATE,), (GATE,))
        yield Multiply(mlp.inner, mlp.activation, (INNER, GATE), (INNER,), OpKind.GATE_UP)
