"""Attention over the KV cache, over a layer's own keys and values or those of another layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.heads import split_heads, turned_bytes
from plimsoll_runtime.models.ops.norm import read
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.attention import AttentionShape


@dataclass(frozen=True, slots=True)
class Attend:
    """Writes keys and values to a layer's cache, then attends with the queries. Reads [T, heads + 2 kv_heads, D].

    `sinks` [heads], where the shape has them.
    """

    layer: int
    shape: AttentionShape
    reads: Values
    writes: Values
    sinks: Weight | None = None
    kind: OpKind = OpKind.ATTENTION

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return () if self.sinks is None else (self.sinks,)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: queries in and out, new keys and values written, those of each context read once."""
        read, pairs = seen(self.shape, rows.spans)
        queries, keys = self.shape.query_width, self.shape.key_width
        return OpCost((2 * rows.count * queries + 2 * (rows.count + read) * keys) * size, 4 * queries * pairs)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return turned_bytes(self.shape, size)

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        layer, shape = self.layer, self.shape
        sinks = read(self.sinks, weights)

        def run(step: Step, heads: Tensor) -> Tensor:
            return attended(step, layer, shape, *split_heads(shape, heads), sinks)

        return run


def attended(
    step: Step, layer: int, shape: AttentionShape, query_key: Tensor, value: Tensor, sinks: Tensor | None
) -> Tensor:
    """Queries and keys [T, heads + kv_heads, D], values [T, kv_heads, D], sinks [heads] -> [T, heads x D]."""
    query, key = torch.split(query_key, [shape.heads, shape.kv_heads], dim=1)
    return step.attention(layer, query, key, value, sinks).flatten(1)


def seen(shape: AttentionShape, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Of rows at positions (first, end) of each sequence: tokens that any of them sees, and pairs of row and token."""
    if shape.whole:
        counts = [end - start for start, end in spans]
        return sum(counts), sum(n * min(n, n if shape.window is None else 2 * shape.window - 1) for n in counts)
    read = sum(end - shape.first_seen(start) for start, end in spans)
    return read, sum(_seen(shape, end) - _seen(shape, start) for start, end in spans)


def _seen(shape: AttentionShape, end: int) -> int:
    """Tokens seen by the queries at positions 0 .. end - 1, each counting itself."""
    whole, rest = (0, end) if shape.chunk is None else divmod(end, shape.chunk)
    return whole * _seen_of_chunk(shape, shape.chunk or 0) + _seen_of_chunk(shape, rest)


def _seen_of_chunk(shape: AttentionShape, end: int) -> int:
    window = end if shape.window is None else shape.window
    growing = min(end, window)
    return growing * (growing + 1) // 2 + (end - growing) * window


@dataclass(frozen=True, slots=True)
class AttendShared:
    """Attends over the cache of a layer that an earlier op of the step has written to. Reads queries [T, heads x D]."""

    layer: int
    shape: AttentionShape
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ATTENTION

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: queries in and out, keys and values of each context read once."""
        read, pairs = seen(self.shape, rows.spans)
        queries, keys = self.shape.query_width, self.shape.key_width
        return OpCost((2 * rows.count * queries + 2 * read * keys) * size, 4 * queries * pairs)

    def row_bytes(self, size: int) -> int:
        """See Op: the queries, and what comes of them."""
        return 2 * self.shape.query_width * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        layer, heads = self.layer, self.shape.heads

        def run(step: Step, queries: Tensor) -> Tensor:
            return step.attention(layer, queries.view(len(queries), heads, -1), None, None).flatten(1)

        return run
