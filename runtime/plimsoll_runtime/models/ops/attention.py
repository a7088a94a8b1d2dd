"""Attention over the KV cache, with a layer's own keys and values or those of another layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from plimsoll_kernels.cpu.op_records import AttendRecord, HeadsRecord, ShapeRecord
from plimsoll_runtime.models.layers.attention import slopes_of
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuReads, CpuValues, UnsupportedOpError, check_known
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.heads import (
    TURNS,
    HeadTurn,
    NormHeads,
    OfHeads,
    Rotate,
    ScaleQueries,
    put_growth,
    split_heads,
    turned_bytes,
)
from plimsoll_runtime.models.ops.norm import read
from plimsoll_runtime.models.ops.op import Op, Run, Step, Values
from plimsoll_runtime.models.ops.weight import Weight, Weights
from plimsoll_runtime.models.spec.attention import AttentionShape, Growth, RopeSpec


@dataclass(frozen=True, slots=True)
class Attend(OfHeads):
    """Writes keys and values to a layer's cache, then attends. Reads [T, heads + 2 kv_heads, D].

    `sinks` [heads] are required if the shape has them.
    """

    layer: int
    shape: AttentionShape
    reads: Values
    writes: Values
    sinks: Weight | None = None
    kind: OpKind = OpKind.ATTENTION
    cpu_fields: ClassVar = ("layer", "shape", "sinks")

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost: queries in and out, new keys and values written, each context's keys and values read
        once.
        """
        read, pairs = rows.seen(self.shape.mask)
        queries, keys = self.shape.query_width, self.shape.key_width
        return OpCost((2 * rows.count * queries + 2 * (rows.count + read) * keys) * size, 4 * queries * pairs)

    def row_bytes(self, size: int) -> int:
        return turned_bytes(self.shape, size)

    def compiled(self, weights: Weights) -> Run:
        layer, shape = self.layer, self.shape
        sinks = read(self.sinks, weights)

        def run(step: Step, heads: Tensor) -> Tensor:
            return attended(step, layer, shape, *split_heads(shape, heads), sinks)

        return run

    def check_cpu(self) -> None:
        sizes = ("heads", "kv_heads", "head_dim")
        check_known(self.shape, *sizes, "scale", "window", "softcap", "chunk", "alibi", "sinks", "whole")

    def lower(self, values: CpuValues) -> Iterator[CpuOp]:
        """Lower the op together with the head ops before it."""
        [heads], [name], width = self.reads, self.writes, self.shape.query_width
        turns = _turns_before(values)
        source = values.floats(heads, width + 2 * self.shape.key_width)
        values.at += 1
        if values.lives(heads) or not values.is_read_by(name, CpuReads.OPERANDS, CpuReads.GATED):
            raise UnsupportedOpError("supports attention only if all later readers of its result are products")
        if turns.norm is not None and turns.norm.norm.together:
            if turns.turned:
                raise UnsupportedOpError("supports norms over all heads together only before the rotation")
            yield from turns.norm.over_all_heads(source)
            turns = turns._replace(norm=None)
        queries = values.scratch("queries", width)
        yield CpuOp(OpKind.ROPE, lambda weights: self._heads_record(weights, turns, values.ropes, source, queries))
        target = values.written(name, width, operands=True, apart=[queries])

        def record(weights: CpuWeights) -> AttendRecord:
            slopes = slopes_of(self.shape)
            weights.kept.append(slopes)
            shape = shape_record(self.shape, slopes, weights.floats(self.sinks))
            return AttendRecord(shape=shape, layer=self.layer, source=queries, target=target)

        yield CpuOp(OpKind.ATTENTION, record)

    def _heads_record(
        self, weights: CpuWeights, turns: _Turns, ropes: Sequence[RopeSpec], source: int, queries: int
    ) -> HeadsRecord:
        record = HeadsRecord(shape=shape_record(self.shape), layer=self.layer, source=source, target=queries, rope=-1)
        if turns.rotate is not None:
            rope = turns.rotate.rope
            record.rope, record.rotated, record.pairs = ropes.index(rope), rope.head_dim, rope.pairs
        if turns.norm is not None:
            turns.norm.put(record, weights)
            record.turned = turns.turned
        put_growth(record, turns.growth)
        return record


class _Turns(NamedTuple):
    """The ops on query and key heads before attention, None if absent. `turned`: the norm comes after the rotation."""

    norm: NormHeads | None
    rotate: Rotate | None
    growth: Growth | None
    turned: bool


def _turns_before(values: CpuValues) -> _Turns:
    ops = [*takewhile(lambda op: isinstance(op, HeadTurn), reversed(values.ops[: values.at]))][::-1]
    norm = next((op for op in ops if isinstance(op, NormHeads)), None)
    rotate = next((op for op in ops if isinstance(op, Rotate)), None)
    scale = ops[-1] if ops and isinstance(ops[-1], ScaleQueries) else None
    if len(ops) != (norm is not None) + (rotate is not None) + (scale is not None):
        raise UnsupportedOpError(TURNS)
    return _Turns(norm, rotate, None if scale is None else scale.growth, norm is not None and ops[0] is rotate)


def shape_record(shape: AttentionShape, slopes: Tensor | None = None, sinks: int | None = None) -> ShapeRecord:
    """Return the kernels' record of an attention shape, with the addresses of ALiBi slopes and float32 sinks
    [heads].
    """
    return ShapeRecord(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        window=shape.window or 0,
        chunk=shape.chunk or 0,
        coarse=shape.alibi is not None and shape.alibi.coarse,
        whole=shape.whole,
        scale=shape.scale,
        softcap=shape.softcap or 0.0,
        slopes=None if slopes is None else slopes.data_ptr(),
        sinks=sinks,
        latent=shape.head_dim if shape.latent else 0,
        apart=shape.head_dim,
    )


def attended(
    step: Step, layer: int, shape: AttentionShape, query_key: Tensor, value: Tensor, sinks: Tensor | None
) -> Tensor:
    """Return the attention result [T, heads x D] for queries and keys [T, heads + kv_heads, D], values [T, kv_heads, D]
    and sinks [heads].
    """
    query, key = torch.split(query_key, [shape.heads, shape.kv_heads], dim=1)
    return step.attention(layer, query, key, value, sinks).flatten(1)


@dataclass(frozen=True, slots=True)
class AttendShared(Op):
    """Attends over the cache of a layer that an earlier op of the step has filled. Reads queries [T, heads x D]."""

    layer: int
    shape: AttentionShape
    reads: Values
    writes: Values
    kind: OpKind = OpKind.ATTENTION

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """Return the cost: queries in and out, each context's keys and values read once."""
        read, pairs = rows.seen(self.shape.mask)
        queries, keys = self.shape.query_width, self.shape.key_width
        return OpCost((2 * rows.count * queries + 2 * read * keys) * size, 4 * queries * pairs)

    def row_bytes(self, size: int) -> int:
        """Return the bytes of the queries and of the result."""
        return 2 * self.shape.query_width * size

    def compiled(self, weights: Weights) -> Run:
        layer, heads = self.layer, self.shape.heads

        def run(step: Step, queries: Tensor) -> Tensor:
            return step.attention(layer, queries.view(len(queries), heads, -1), None, None).flatten(1)

        return run
