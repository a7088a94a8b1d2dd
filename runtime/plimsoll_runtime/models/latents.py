"""From latent attention's spec to its ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll_runtime.models.linears import Linears
from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.latent import Absorb, AttendLatent, Expand, Latent
from plimsoll_runtime.models.ops.normalise import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.self_attention import ATTENDED
from plimsoll_runtime.models.spec.attention import LatentAttention
from plimsoll_runtime.models.spec.names import Names

QUERIES, LATENT, VALUES = "queries", "latent", "values"


@dataclass(frozen=True, slots=True)
class LatentComposer:
    """One layer's. States are `hidden` wide."""

    attention: LatentAttention
    layer: int
    hidden: int
    names: Names
    linears: Linears

    def ops(self, reads: str, writes: str) -> Iterator[Op]:
        """In their order."""
        own, names, product = self.attention, self.names.latent, self.linears.product
        turned = own.rope.head_dim
        yield product(OpKind.QKV, names.down, own.rank + turned, self.hidden, (reads, LATENT), biased=own.bias)
        yield Latent(own, self.linears.vector(f"{names.norm}.weight", own.rank), (LATENT,), (LATENT,))
        yield from self._queries(reads, own.heads * (own.plain + turned))
        up = self.linears.matrix(names.up, own.heads * (own.plain + own.value), own.rank)
        yield Absorb(own, up, (QUERIES,), (QUERIES,))
        yield AttendLatent(self.layer, own, (QUERIES, LATENT), (ATTENDED,))
        yield Expand(own, up, (ATTENDED,), (VALUES,))
        width = own.heads * own.value
        yield product(OpKind.OUTPUT, self.names.output, self.hidden, width, (VALUES, writes), biased=own.bias)

    def _queries(self, reads: str, width: int) -> Iterator[Op]:
        own, names, product = self.attention, self.names.latent, self.linears.product
        if own.query_rank is None:
            yield product(OpKind.QKV, names.query, width, self.hidden, (reads, QUERIES), biased=False)
            return
        yield product(OpKind.QKV, names.query_down, own.query_rank, self.hidden, (reads, QUERIES), biased=own.bias)
        norm = self.linears.vector(f"{names.query_norm}.weight", own.query_rank)
        yield Normalise(own.norm, own.query_rank, (QUERIES,), (QUERIES,), norm)
        yield product(OpKind.QKV, names.query_up, width, own.query_rank, (QUERIES, QUERIES), biased=False)
