"""Ops on heads before attention: norms, RoPE, scales of queries, and norms of values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from plimsoll_kernels.cpu.op_records import AbsorbRecord, HeadsRecord, Normed
from plimsoll_runtime.models.layers.rope import rotate
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuValues, UnsupportedOpError, check_known
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.norm import FLOPS, Normalise, Normaliser, read
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.attention import AttentionShape, Growth, HeadNorm, RopeSpec
from plimsoll_runtime.models.spec.norm import Norm

ROTATION_FLOPS = 3
"""Operations for each element: two multiplications and an addition."""

TURNS = "supports at most one norm and one rotation of heads, directly before attention"
"""Error message for head ops that the CPU kernels do not support."""

OfQueryKey = Callable[[Step, Tensor], Tensor]
"""Maps (step, queries and keys [T, heads + kv_heads, D]) to the same shape."""


class QueryKeyNorm:
    """A norm over each head of queries and keys in one pass, or (`together`) over all query heads and over all key
    heads.

    `weight` [heads + kv_heads, D] (including the offset) and `eps`: see NormOfHeads. Queries or keys without a weight
    use ones on `device`.
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
        if not self._together:
            return self._norms[0](heads)
        parts = zip(self._norms, torch.split(heads, self._counts, dim=1), strict=True)
        return torch.cat([norm(part.flatten(1)).view(part.shape) for norm, part in parts], dim=1)


class OfHeads(Op):
    """An op over [T, heads + 2 kv_heads, D], as the product writes queries, keys and values."""

    __slots__ = ()


class HeadTurn(OfHeads):
    """An op over the heads of queries and keys before attention; values pass unchanged. `shape` is attention's."""

    __slots__ = ()
    shape: AttentionShape

    @abstractmethod
    def of_query_key(self, weights: Weights) -> OfQueryKey:
        """Return the function over queries and keys."""

    def row_bytes(self, size: int) -> int:
        return turned_bytes(self.shape, size)

    def compiled(self, weights: Weights) -> Run:
        return _beside_values(self.shape, self.of_query_key(weights))

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Emit nothing: `Attend.lower` looks back at this op."""
        match values.following(1):
            case [OfHeads() as after] if self.reads == self.writes == after.reads:
                values.at += 1
                return iter(())
        raise UnsupportedOpError(TURNS)


@dataclass(frozen=True, slots=True)
class NormHeads(HeadTurn):
    """A norm over heads of queries and of keys; values pass. Weights are [head_dim], or of all heads, or None."""

    norm: HeadNorm
    shape: AttentionShape
    query: Weight | None
    key: Weight | None
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ROPE
    cpu_fields: ClassVar = ("norm", "shape", "query", "key")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the operations only; the bytes are counted by the rotation."""
        return OpCost(0, FLOPS * rows.count * (self.shape.query_width + self.shape.key_width))

    def of_query_key(self, weights: Weights) -> QueryKeyNorm:
        query, key = read(self.query, weights), read(self.key, weights)
        return QueryKeyNorm(self.norm, self.shape, query, key, weights.device)

    def check_cpu(self) -> None:
        check_known(self.norm, "norm", "together", "own", "turned")
        check_known(self.norm.norm, "eps", "kind", "offset", "weighted")

    def put(self, record: HeadsRecord, weights: CpuWeights) -> None:
        """Set a record's fields for the norm of each query and key head."""
        norm, head_dim = self.norm.norm, self.shape.head_dim
        record.norm, record.eps = Normed[norm.kind.upper()], norm.eps
        record.norm_step = head_dim if self.norm.own else 0
        record.query_norm, record.key_norm = (
            weights.scale(weight, head_dim if weight is None else weight.shape[0], norm.offset)
            for weight in (self.query, self.key)
        )

    def over_all_heads(self, heads: int) -> Iterator[CpuOp]:
        """Yield two ops on the buffer `heads`, in place: one normalises all queries of a row together, one all keys."""
        queries, keys = self.shape.query_width, self.shape.key_width
        for weight, width, first in ((self.query, queries, 0), (self.key, keys, queries)):
            norm = Normalise(self.norm.norm, width, self.reads, self.writes, weight)
            yield CpuOp(self.kind, partial(norm.cpu_record, source=heads, target=heads, first=first))


@dataclass(frozen=True, slots=True)
class Rotate(HeadTurn):
    """RoPE of queries and keys; values pass."""

    rope: RopeSpec
    shape: AttentionShape
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ROPE
    cpu_fields: ClassVar = ("rope", "shape")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        turned = rows.count * (self.shape.query_width + self.shape.key_width)
        return OpCost(2 * turned * size, ROTATION_FLOPS * turned)

    def of_query_key(self, weights: Weights) -> OfQueryKey:
        rope = self.rope

        def turn(step: Step, heads: Tensor) -> Tensor:
            return rotate(heads, *step.turns[rope], pairs=rope.pairs)

        return turn


@dataclass(frozen=True, slots=True)
class ScaleQueries(HeadTurn):
    """Queries times a factor that grows with their position; keys and values pass."""

    growth: Growth
    shape: AttentionShape
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ROPE
    cpu_fields: ClassVar = ("growth", "shape")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return one multiplication for each element, without bytes."""
        return OpCost(0, rows.count * self.shape.query_width)

    def of_query_key(self, weights: Weights) -> OfQueryKey:
        growth, counts = self.growth, [self.shape.heads, self.shape.kv_heads]

        def scale(step: Step, heads: Tensor) -> Tensor:
            query, key = torch.split(heads, counts, dim=1)
            return torch.cat([query * growing(growth, step, query.dtype), key], dim=1)

        return scale

    def check_cpu(self) -> None:
        check_known(self.growth, "scale", "every", "offset")


def growing(growth: Growth, step: Step, dtype: torch.dtype) -> Tensor:
    """Return the factors of a step's queries: [T, 1, 1]."""
    whole = torch.floor((step.positions + growth.offset) / growth.every)
    return (1.0 + growth.scale * torch.log1p(whole)).to(dtype)[:, None, None]


def put_growth(record: HeadsRecord | AbsorbRecord, growth: Growth | None) -> None:
    """Set a record's fields for the factor of queries that grows with the position; None changes nothing."""
    if growth is not None:
        record.growth, record.growth_every, record.growth_offset = growth.scale, growth.every, growth.offset


def turned_bytes(shape: AttentionShape, size: int) -> int:
    """Return the bytes of a row of queries, keys and values, and of three copies of its queries and keys: temporaries
    of the rotation, and its result.
    """
    turned = shape.query_width + shape.key_width
    return (turned + shape.key_width + 3 * turned) * size


def split_heads(shape: AttentionShape, heads: Tensor) -> tuple[Tensor, Tensor]:
    """Split a product [T, width] into queries and keys [T, heads + kv_heads, D] and values [T, kv_heads, D]."""
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
class NormValues(Op):
    """A norm without weights over each head of values; queries and keys pass. Writes [T, heads + 2 kv_heads, D].

    `of_keys`: there are no values in the input, and the normalised keys become the values.
    """

    norm: Norm
    shape: AttentionShape
    reads: Values
    writes: Values
    of_keys: bool = False
    kind: OpKind = OpKind.ROPE

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost: values in and out."""
        elements = rows.count * self.shape.key_width
        return OpCost(2 * elements * size, FLOPS * elements)

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the input, of the values in float32 and normalised, and of the joined result."""
        whole = self.shape.query_width + 2 * self.shape.key_width
        return (2 * whole + self.shape.key_width) * size + 2 * self.shape.key_width * FLOAT32

    def compiled(self, weights: Weights) -> Run:
        shape, normaliser = self.shape, Normaliser(self.norm.kind, self.norm.eps, None)
        kept = shape.heads + shape.kv_heads
        first = shape.heads if self.of_keys else kept

        def run(step: Step, heads: Tensor) -> Tensor:
            each = heads.view(len(heads), -1, shape.head_dim)
            return torch.cat([each[:, :kept], normaliser(each[:, first:])], dim=1).flatten(1)

        return run
