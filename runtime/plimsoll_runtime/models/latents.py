"""From latent attention's spec to its ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.latent import Absorb, AttendLatent, Expand, Latent
from plimsoll_runtime.models.ops.normalise import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.product import Product
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.attention import LatentAttention
from plimsoll_runtime.models.spec.names import Names

QUERIES, LATENT, ATTENDED, VALUES = "queries", "latent", "attended", "values"


@dataclass(frozen=True, slots=True)
class LatentComposer:
    """One layer's; names begin with `prefix`. States are `hidden` wide."""

    attention: LatentAttention
    layer: int
    hidden: int
    names: Names
    prefix: str

    def ops(self, reads: str, writes: str) -> Iterator[Op]:
        """In their order."""
        own, names = self.attention, self.names.latent
        turned = own.rope.head_dim
        yield self._product(OpKind.QKV, names.down, own.rank + turned, self.hidden, (reads, LATENT), biased=own.bias)
        yield Latent(own, self._vector(f"{names.norm}.weight", own.rank), (LATENT,), (LATENT,))
        yield from self._queries(reads, own.heads * (own.plain + turned))
        up = self._matrix(names.up, own.heads * (own.plain + own.value), own.rank)
        yield Absorb(own, up, (QUERIES,), (QUERIES,))
        yield AttendLatent(self.layer, own, (QUERIES, LATENT), (ATTENDED,))
        yield Expand(own, up, (ATTENDED,), (VALUES,))
        width = own.heads * own.value
        yield self._product(OpKind.OUTPUT, self.names.output, self.hidden, width, (VALUES, writes), biased=own.bias)

    def _queries(self, reads: str, width: int) -> Iterator[Op]:
        own, names = self.attention, self.names.latent
        if own.query_rank is None:
            yield self._product(OpKind.QKV, names.query, width, self.hidden, (reads, QUERIES), biased=False)
            return
        yield self._product(
            OpKind.QKV, names.query_down, own.query_rank, self.hidden, (reads, QUERIES), biased=own.bias
        )
        norm = self._vector(f"{names.query_norm}.weight", own.query_rank)
        yield Normalise(own.norm, own.query_rank, (QUERIES,), (QUERIES,), norm)
        yield self._product(OpKind.QKV, names.query_up, width, own.query_rank, (QUERIES, QUERIES), biased=False)

    def _product(
        self, kind: OpKind, name: str, outputs: int, inputs: int, values: tuple[str, str], *, biased: bool
    ) -> Product:
        reads, writes = values
        biases = (self._vector(f"{name}.bias", outputs),) if biased else ()
        return Product(kind, (self._matrix(name, outputs, inputs),), biases, (reads,), (writes,))

    def _matrix(self, name: str, outputs: int, inputs: int) -> Weight:
        return Weight(f"{self.prefix}.{name}.weight", (outputs, inputs), self.names.transposed)

    def _vector(self, name: str, size: int) -> Weight:
        return Weight(f"{self.prefix}.{name}", (size,))
