"""Multi-head latent attention: one cached vector for each token stands for all heads' keys and values (DeepSeek-AI,
2024).

Keys and values are not computed: a query times W_k c is (query W_k) times c, and weights times W_v c are W_v times the
weighted sum of c. So W_k is applied to the queries, attention runs over the vectors c, and W_v is applied to its
result. `up` [heads x (plain + value), rank] has W_k and W_v of each head, one below the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from plimsoll_kernels.cpu.op_records import (
    WIDEST,
    AbsorbRecord,
    AttendRecord,
    ExpandRecord,
    LatentRecord,
    Normed,
    ShapeRecord,
)
from plimsoll_kernels.cpu.threads import thread_count
from plimsoll_runtime.models.layers.rope import rotate
from plimsoll_runtime.models.ops.cost import FLOAT32, OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuValues, UnsupportedOpError, check_known
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.heads import ROTATION_FLOPS, growing, put_growth
from plimsoll_runtime.models.ops.norm import FLOPS, Normaliser, scale_of
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.attention import LatentAttention

STEP = 32
"""Most values of a row that the CPU kernels' products read at a time. Distances between heads are multiples of it."""


class LatentOp(Op):
    """An op of latent attention."""

    __slots__ = ()
    attention: LatentAttention

    def check_cpu(self) -> None:
        own = self.attention
        check_known(own, "heads", "rank", "plain", "value", "rope", "scale", "norm", "query_rank", "bias", "growth")
        check_known(own.norm, "eps", "kind", "offset", "weighted")
        if own.growth is not None:
            check_known(own.growth, "scale", "every", "offset")


@dataclass(frozen=True, slots=True)
class Latent(LatentOp):
    """The cached vector [T, rank + turned]: normalises its first `rank` numbers and rotates the others."""

    attention: LatentAttention
    norm: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ROPE
    cpu_fields: ClassVar = ("attention", "norm")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        rank, turned = self.attention.rank, self.attention.rope.head_dim
        flops = rows.count * (FLOPS * rank + ROTATION_FLOPS * turned)
        return OpCost(2 * rows.count * (rank + turned) * size + rank * FLOAT32, flops)

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the vector and its parts, and of its norm in float32."""
        width = self.attention.rank + self.attention.rope.head_dim
        return 3 * width * size + 3 * self.attention.rank * FLOAT32

    def compiled(self, weights: Weights) -> Run:
        norm, rope = self.attention.norm, self.attention.rope
        normaliser = Normaliser(norm.kind, norm.eps, scale_of(norm, self.norm, weights), None)
        sizes = [self.attention.rank, rope.head_dim]

        def run(step: Step, latent: Tensor) -> Tensor:
            plain, turning = torch.split(latent, sizes, dim=1)
            turned = rotate(turning[:, None], *step.turns[rope], pairs=rope.pairs)[:, 0]
            return torch.cat([normaliser(plain), turned], dim=1)

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Lower the op. The kernel writes vectors only to the cache, so attention must be their only reader."""
        own, norm, rope = self.attention, self.attention.norm, self.attention.rope
        [name], width = self.writes, own.rank + rope.head_dim
        source, layer = values.floats(self.reads[0], width), self._layer(values)
        values.at += 1
        values.changed(name, width, source)

        def record(weights: CpuWeights) -> LatentRecord:
            return LatentRecord(
                weight=weights.scale(self.norm, own.rank, norm.offset),
                layer=layer,
                source=source,
                rank=own.rank,
                turned=rope.head_dim,
                norm=Normed[norm.kind.upper()],
                rope=values.ropes.index(rope),
                pairs=rope.pairs,
                eps=norm.eps,
            )

        yield CpuOp(self.kind, record)

    def _layer(self, values: CpuValues) -> int:
        """Return the `layer` of the attention op that reads the vectors. Raises UnsupportedOpError if it is not their
        only reader.
        """
        rest = values.ops[values.at + 1 :]
        readers = [each for each in rest if set(self.writes) & set(each.reads)]
        match readers[:1]:
            case [AttendLatent() as attend] if (
                self.reads == self.writes == attend.reads[1:] and attend.attention == self.attention
            ):
                again = next((n for n, each in enumerate(rest) if set(self.writes) & set(each.writes)), len(rest))
                if not any(set(self.writes) & set(each.reads) for each in rest[rest.index(attend) + 1 : again + 1]):
                    return attend.layer
        raise UnsupportedOpError("supports latent vectors only with exactly one attention op as reader")


@dataclass(frozen=True, slots=True)
class Absorb(LatentOp):
    """Queries in the space of the cached vectors: [T, heads x (plain + turned)] -> [T, heads x (rank + turned)]."""

    attention: LatentAttention
    up: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.QKV
    cpu_fields: ClassVar = ("attention", "up")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost, with the part of the matrix that makes keys."""
        own, turned = self.attention, self.attention.rope.head_dim
        matrix = own.heads * own.plain * own.rank
        passed = own.heads * (own.plain + own.rank + 2 * turned)
        flops = 2 * matrix + own.heads * turned * ROTATION_FLOPS
        return OpCost((matrix + rows.count * passed) * size, rows.count * flops)

    def row_bytes(self, size: int) -> int:
        """Count the queries (plain and rotated dimensions), and three buffers as wide as the result."""
        own, turned = self.attention, self.attention.rope.head_dim
        return own.heads * (own.plain + 3 * own.rank + 4 * turned) * size

    def compiled(self, weights: Weights) -> Run:
        own = self.attention
        keys = by_head(own, weights.read(self.up, keep=True))[:, : own.plain]

        def run(step: Step, queries: Tensor) -> Tensor:
            each = queries.view(len(queries), own.heads, -1)
            if own.growth is not None:
                each = each * growing(own.growth, step, each.dtype)
            plain, turning = torch.split(each, [own.plain, own.rope.head_dim], dim=-1)
            absorbed = torch.bmm(plain.transpose(0, 1), keys).transpose(0, 1)
            turned = rotate(turning, *step.turns[own.rope], pairs=own.rope.pairs)
            return torch.cat([absorbed, turned], dim=-1).flatten(1)

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        own, rope = self.attention, self.attention.rope
        source = values.floats(self.reads[0], own.heads * (own.plain + rope.head_dim))
        values.at += 1
        between = values.scratch("absorbed", own.heads * head_stride(own.plain))
        target = values.written(self.writes[0], own.heads * (own.rank + rope.head_dim), operands=True)

        def record(weights: CpuWeights) -> AbsorbRecord:
            found = AbsorbRecord(
                weight=packed_heads(weights, own, self.up, lambda up: up[: own.plain].T, own.rank, own.plain),
                source=source,
                between=between,
                target=target,
                heads=own.heads,
                plain=own.plain,
                rank=own.rank,
                turned=rope.head_dim,
                apart=head_stride(own.plain),
                rope=values.ropes.index(rope),
                pairs=rope.pairs,
            )
            put_growth(found, own.growth)
            return found

        yield CpuOp(self.kind, record)


@dataclass(frozen=True, slots=True)
class AttendLatent(LatentOp):
    """Writes vectors to a layer's cache, then attends over it: [T, heads x (rank + turned)] -> [T, heads x rank].

    Reads queries and vectors.
    """

    layer: int
    attention: LatentAttention
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ATTENTION
    cpu_fields: ClassVar = ("layer", "attention")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost: queries in and out, new vectors written, each context's vectors read once for all heads."""
        own, width = self.attention, self.attention.shape.head_dim
        read, pairs = rows.seen(own.shape.mask)
        passed = rows.count * own.heads * (width + own.rank) + (rows.count + read) * width
        return OpCost(passed * size, 2 * own.heads * (width + own.rank) * pairs)

    def row_bytes(self, size: int) -> int:
        """Count four buffers as wide as the queries: queries and results as copied into attention's tiles, the whole
        result, and its first `rank` columns (at most that wide).
        """
        return 4 * self.attention.shape.query_width * size

    def compiled(self, weights: Weights) -> Run:
        layer, heads, rank = self.layer, self.attention.heads, self.attention.rank

        def run(step: Step, queries: Tensor, latent: Tensor) -> Tensor:
            vector = latent[:, None]
            found = step.attention(layer, queries.view(len(queries), heads, -1), vector, vector)
            return found[..., :rank].flatten(1)

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Lower the op. The rows of results are padded to whole registers."""
        own, shape, apart = self.attention, self.attention.shape, head_stride(self.attention.rank)
        source = yield from values.operands(self.reads[0], own.heads * shape.head_dim)
        values.at += 1
        target = values.written(self.writes[0], own.heads * apart, operands=True, apart=[source])
        summed = -(-own.rank // WIDEST) * WIDEST
        record = AttendRecord(
            shape=ShapeRecord(
                heads=shape.heads, kv_heads=1, head_dim=shape.head_dim, scale=shape.scale, latent=summed, apart=apart
            ),
            layer=self.layer,
            source=source,
            target=target,
        )
        yield CpuOp(self.kind, lambda weights: record)


@dataclass(frozen=True, slots=True)
class Expand(LatentOp):
    """Applies each head's value projection to the attention result: [T, heads x rank] -> [T, heads x value]."""

    attention: LatentAttention
    up: Weight
    reads: Values
    writes: Values
    kind: OpKind = OpKind.OUTPUT
    cpu_fields: ClassVar = ("attention", "up")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost, with the part of the matrix that makes values."""
        own = self.attention
        matrix = own.heads * own.value * own.rank
        return OpCost((matrix + rows.count * own.heads * (own.rank + own.value)) * size, 2 * rows.count * matrix)

    def row_bytes(self, size: int) -> int:
        return self.attention.heads * (self.attention.rank + 2 * self.attention.value) * size

    def compiled(self, weights: Weights) -> Run:
        own = self.attention
        values = by_head(own, weights.read(self.up, keep=True))[:, own.plain :].transpose(1, 2)

        def run(step: Step, attended: Tensor) -> Tensor:
            each = attended.view(len(attended), own.heads, -1).transpose(0, 1)
            return torch.bmm(each, values).transpose(0, 1).flatten(1)

        return run

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        own, apart, [name] = self.attention, head_stride(self.attention.rank), self.writes
        source = yield from values.operands(self.reads[0], own.heads * apart)
        values.at += 1
        if not values.is_multiplied(name):
            raise UnsupportedOpError("requires that only matrix products read the result of latent attention")
        target = values.written(name, own.heads * own.value, operands=True, apart=[source])

        def record(weights: CpuWeights) -> ExpandRecord:
            return ExpandRecord(
                weight=packed_heads(weights, own, self.up, lambda up: up[own.plain :], own.value, own.rank),
                source=source,
                target=target,
                heads=own.heads,
                rank=own.rank,
                value=own.value,
                apart=apart,
            )

        yield CpuOp(self.kind, record)


def by_head(attention: LatentAttention, weight: Tensor) -> Tensor:
    """Return `up` as [heads, plain + value, rank]."""
    return weight.view(attention.heads, attention.plain + attention.value, attention.rank)


def head_stride(width: int) -> int:
    """Return the distance, in values, between two heads' rows on a CPU: `width` rounded up to a multiple of STEP."""
    return -(-width // STEP) * STEP


def packed_heads(
    weights: CpuWeights, own: LatentAttention, up: Weight, part: Callable[[Tensor], Tensor], columns: int, inputs: int
) -> int:
    """Pack one part [columns, inputs] of `up` for each head. Return its address."""

    def fill(to: Tensor) -> None:
        for packed, each in zip(to, by_head(own, weights.reader.read(up)), strict=True):
            head = part(each).contiguous()
            weights.kernels.pack(head.data_ptr(), columns, inputs, packed.data_ptr(), thread_count())

    return weights.packed([own.heads, weights.kernels.packed_elements(columns, inputs, 0)], fill)
