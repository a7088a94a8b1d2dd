"""Composes attention over keys and values, and latent attention, into ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll_runtime.models.ops.attention import Attend, AttendShared
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.heads import NormHeads, NormValues, Rotate, ScaleQueries
from plimsoll_runtime.models.ops.matmul import Linears, Product
from plimsoll_runtime.models.ops.mla import Absorb, AttendLatent, Expand, Latent
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.split import Split
from plimsoll_runtime.models.ops.weight import ByGroup, Weight
from plimsoll_runtime.models.spec.attention import AttentionShape, HeadNorm, LatentAttention, SelfAttention
from plimsoll_runtime.models.spec.tensor_names import Names

HEADS, ATTENDED, GATE = "heads", "attended", "gate"


@dataclass(frozen=True, slots=True)
class AttentionComposer:
    """Composes the ops of one attention layer.

    `cache` is the index of its KV cache, `hidden` the hidden size, `length` the longest context in tokens.
    """

    attention: SelfAttention
    cache: int
    hidden: int
    length: int
    names: Names
    linears: Linears

    def ops(self, reads: str, writes: str) -> Iterator[Op]:
        """Yield the ops in order: the first reads the value `reads`, the last writes the value `writes`."""
        own, shape = self.attention, self.attention.shape
        yield from self._gated_heads(reads) if own.gated else self._heads(reads)
        if own.shares is None:
            yield from self._turned(shape)
            sinks = self.linears.vector(self.names.sinks, shape.heads) if shape.sinks else None
            yield Attend(self.cache, shape, (HEADS,), (ATTENDED,), sinks)
        else:
            yield from self._turned(shape.queries_alone)
            yield AttendShared(self.cache, shape, (HEADS,), (ATTENDED,))
        if own.gated:
            yield Multiply(shape.query_width, "sigmoid", (ATTENDED, GATE), (ATTENDED,), OpKind.ATTENTION)
        yield self.linears.product(
            OpKind.OUTPUT, self.names.output, self.hidden, shape.query_width, (ATTENDED, writes), biased=own.output_bias
        )

    def _gated_heads(self, reads: str) -> Iterator[Op]:
        """Yield one product whose columns are gates, queries, keys and values, and the split that separates the gates.

        The files store the rows of each query head followed by those of its gate.
        """
        shape, (query, *others) = self.attention.shape, self.names.query_key_value
        order = ByGroup(shape.heads, (shape.head_dim, shape.head_dim), (1, 0))
        queries, keys = (
            self.linears.parts(names, rows, self.hidden, biased=self.attention.qkv_bias, order=o)
            for names, rows, o in (
                ((query,), (2 * shape.query_width,), order),
                (tuple(others), (shape.key_width, shape.key_width), None),
            )
        )
        yield Product(OpKind.QKV, queries[0] + keys[0], queries[1] + keys[1], (reads,), ("projected",))
        widths = (shape.query_width, shape.query_width + 2 * shape.key_width)
        yield Split(widths, ("projected",), (GATE, HEADS), OpKind.QKV)

    def _heads(self, reads: str) -> Iterator[Op]:
        """Yield the product that computes queries, keys and values (those that the layer has) side by side, and the
        norm of values, if any.
        """
        own, shape, names = self.attention, self.attention.shape, self.names
        widths: tuple[int, ...] = (shape.query_width, shape.key_width, shape.key_width)
        order: ByGroup | None = None
        if names.interleaved:
            rows = (shape.query_width // shape.kv_heads, shape.head_dim, shape.head_dim)
            order = ByGroup(shape.kv_heads, rows, (0, 1, 2))
        elif names.shards:
            order = ByGroup(names.shards, tuple(width // names.shards for width in widths), (0, 2, 1))
        count = 1 if own.shares is not None else 2 if own.values_of_keys else 3
        stored, widths = names.query_key_value[:count], widths[:count]
        parts = self.linears.parts(stored, widths, self.hidden, biased=own.qkv_bias, order=order)
        yield Product(OpKind.QKV, *parts, (reads,), (HEADS,), clip=own.clip)
        if own.value_norm is not None and own.shares is None:
            yield NormValues(own.value_norm, shape, (HEADS,), (HEADS,), own.values_of_keys)

    def _turned(self, shape: AttentionShape) -> Iterator[Op]:
        own = self.attention
        norms: list[Op] = [] if own.head_norm is None else [self._normed(own.head_norm, shape)]
        turns: list[Op] = [] if own.rope is None else [Rotate(own.rope.within(self.length), shape, (HEADS,), (HEADS,))]
        yield from [*turns, *norms] if own.head_norm is not None and own.head_norm.turned else [*norms, *turns]
        if own.growth is not None:
            yield ScaleQueries(own.growth, shape, (HEADS,), (HEADS,))

    def _normed(self, norm: HeadNorm, shape: AttentionShape) -> NormHeads:
        """Return the op that normalises the heads of queries and keys."""

        def weight(name: str, heads: int) -> Weight | None:
            if not heads or not norm.norm.weighted:
                return None
            size = heads * shape.head_dim if norm.own or norm.together else shape.head_dim
            folded = (heads, shape.head_dim) if norm.own else None
            return Weight(f"{self.linears.prefix}.{name}.weight", (size,), folded=folded)

        query, key = map(weight, self.names.head_norms, (shape.heads, shape.kv_heads))
        return NormHeads(norm, shape, query, key, (HEADS,), (HEADS,))


QUERIES, LATENT, VALUES = "queries", "latent", "values"


@dataclass(frozen=True, slots=True)
class LatentComposer:
    """Composes the ops of one latent attention layer.

    `layer` is the index of its KV cache, `hidden` the hidden size.
    """

    attention: LatentAttention
    layer: int
    hidden: int
    names: Names
    linears: Linears

    def ops(self, reads: str, writes: str) -> Iterator[Op]:
        """Yield the ops in order: the first reads the value `reads`, the last writes the value `writes`."""
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
