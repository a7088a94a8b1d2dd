"""Ops on heads before attention: norms, rotary embedding and scales of queries and keys, norms of values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.models.layers.rope import rotate
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.norm import FLOPS, Normaliser, read
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.attention import AttentionShape, Growth, HeadNorm, RopeSpec
from plimsoll_runtime.models.spec.norm import Norm

ROTATION_FLOPS = 3
"""For each element: two multiplications and an addition."""

OfQueryKey = Callable[[Step, Tensor], Tensor]
"""(step, queries and keys [T, heads + kv_heads, D]) -> the same shape."""


class QueryKeyNorm:
    """A norm over each head, or over all of queries and all of keys, in one pass over both.

    `weight` [heads + kv_heads, D] (the offset is in it already) and `eps`: see NormOfHeads. Queries or keys without
    weights have ones, on the run's `device`.
    """

    def __init__(
        self, norm: HeadNorm, shape: AttentionShape, query: Tensor | None, key: Tensor | None, device: torch.device
    ) -> None:
        self._counts = [shape.heads, shape.kv_heads]
        both = [torch.ones(shape.head_dim, device=device) if t is None else t for t in (query, key)]
        rows = [t.view(-1, shape.head_dim).expand(n, -1) for t, n in zip(both, self._counts, strict=True)]
        self.weight = torch.cat(rows).float() + norm.norm.offset
        self.eps = norm.norm.eps
        self._together = norm.together
        scales = [w.flatten() for w in torch.split(self.weight, self._counts)] if norm.together else [self.weight]
        self._norms = [Normaliser(norm.norm.kind, self.eps, s if norm.norm.weighted else None) for s in scales]

    def __call__(self, step: Step, heads: Tensor) -> Tensor:
        """See OfQueryKey."""
        if not self._together:
            return self._norms[0](heads)
        parts = zip(self._norms, torch.split(heads, self._counts, dim=1), strict=True)
        return torch.cat([norm(part.flatten(1)).view(part.shape) for norm, part in parts], dim=1)


@dataclass(frozen=True, slots=True)
class NormHeads:
    """A norm over heads of queries and of keys; values pass. Weights [head_dim], or of all heads in a row, or none."""

    norm: HeadNorm
    shape: AttentionShape
    query: Weight | None
    key: Weight | None
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ROPE

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return tuple(each for each in (self.query, self.key) if each is not None)

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: its bytes are those of the rotation."""
        return OpCost(0, FLOPS * rows.count * (self.shape.query_width + self.shape.key_width))

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return turned_bytes(self.shape, size)

    def of_query_key(self, weights: Weights) -> QueryKeyNorm:
        """What it does to queries and keys alone."""
        query, key = read(self.query, weights), read(self.key, weights)
        return QueryKeyNorm(self.norm, self.shape, query, key, weights.device)

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        return _beside_values(self.shape, self.of_query_key(weights))


@dataclass(frozen=True, slots=True)
class Rotate:
    """The rotary embedding of queries and keys; values pass."""

    rope: RopeSpec
    shape: AttentionShape
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ROPE

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        turned = rows.count * (self.shape.query_width + self.shape.key_width)
        return OpCost(2 * turned * size, ROTATION_FLOPS * turned)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return turned_bytes(self.shape, size)

    def of_query_key(self, weights: Weights) -> OfQueryKey:
        """What it does to queries and keys alone."""
        rope = self.rope

        def turn(step: Step, heads: Tensor) -> Tensor:
            return rotate(heads, *step.turns[rope], pairs=rope.pairs)

        return turn

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        return _beside_values(self.shape, self.of_query_key(weights))


@dataclass(frozen=True, slots=True)
class ScaleQueries:
    """Queries times a number that grows with their position; keys and values pass."""

    growth: Growth
    shape: AttentionShape
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ROPE

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: a multiplication for each element, while it is on its way to attention."""
        return OpCost(0, rows.count * self.shape.query_width)

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return turned_bytes(self.shape, size)

    def of_query_key(self, weights: Weights) -> OfQueryKey:
        """What it does to queries and keys alone."""
        growth, counts = self.growth, [self.shape.heads, self.shape.kv_heads]

        def scale(step: Step, heads: Tensor) -> Tensor:
            query, key = torch.split(heads, counts, dim=1)
            return torch.cat([query * growing(growth, step, query.dtype), key], dim=1)

        return scale

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        return _beside_values(self.shape, self.of_query_key(weights))


def growing(growth: Growth, step: Step, dtype: torch.dtype) -> Tensor:
    """What the queries of a step's rows are multiplied by: [T, 1, 1]."""
    whole = torch.floor((step.positions + growth.offset) / growth.every)
    return (1.0 + growth.scale * torch.log1p(whole)).to(dtype)[:, None, None]


def turned_bytes(shape: AttentionShape, size: int) -> int:
    """The product, and of queries and keys two halves and what comes of them."""
    turned = shape.query_width + shape.key_width
    return (turned + shape.key_width + 3 * turned) * size


def split_heads(shape: AttentionShape, heads: Tensor) -> tuple[Tensor, Tensor]:
    """[T, width] as the product leaves it -> queries and keys [T, heads + kv_heads, D], values [T, kv_heads, D]."""
    each = heads.view(heads.shape[0], shape.heads + 2 * shape.kv_heads, shape.head_dim)
    query_key, value = torch.split(each, [shape.heads + shape.kv_heads, shape.kv_heads], dim=1)
    return query_key, value


def _beside_values(shape: AttentionShape, of_query_key: OfQueryKey) -> Run:
    def of_queries(step: Step, heads: Tensor) -> Tensor:
        return of_query_key(step, heads.view(len(heads), shape.heads, shape.head_dim)).flatten(1)

    def run(step: Step, heads: Tensor) -> Tensor:
        query_key, value = split_heads(shape, heads)
        return torch.cat([of_query_key(step, query_key), value], dim=1).flatten(1)

    return run if shape.kv_heads else of_queries


@dataclass(frozen=True, slots=True)
class NormValues:
    """A norm without weights over each head of values; queries and keys pass. Writes [T, heads + 2 kv_heads, D].

    `of_keys`: no values are read, and keys as they are read are normed in their place.
    """

    norm: Norm
    shape: AttentionShape
    reads: Values
    writes: Values
    of_keys: bool = False
    kind: OpKind = OpKind.ROPE

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op: values in and out."""
        elements = rows.count * self.shape.key_width
        return OpCost(2 * elements * size, FLOPS * elements)

    def row_bytes(self, size: int) -> int:
        """See Op: what is read, the values in float32 and normed, and all of it side by side."""
        whole = self.shape.query_width + 2 * self.shape.key_width
        return (2 * whole + self.shape.key_width) * size + 2 * self.shape.key_width * FLOAT32

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        shape, normaliser = self.shape, Normaliser(self.norm.kind, self.norm.eps, None)
        kept = shape.heads + shape.kv_heads
        first = shape.heads if self.of_keys else kept

        def run(step: Step, heads: Tensor) -> Tensor:
            each = heads.view(len(heads), -1, shape.head_dim)
            return torch.cat([each[:, :kept], normaliser(each[:, first:])], dim=1).flatten(1)

        return run
