"""What the CPU kernels read of a program's ops and their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import torch
from torch import Tensor

from plimsoll_kernels.cpu.experts import ExpertSizes, PackedExperts
from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.linear import PackedGatedLinear, PackedLinear
from plimsoll_kernels.cpu.op_records import (
    AddRecord,
    AnyOp,
    AttendRecord,
    EmbedRecord,
    ExpertsRecord,
    GateRecord,
    HeadsRecord,
    Normed,
    NormRecord,
    PositionsRecord,
    ProductRecord,
    RouteRecord,
    Rule,
)
from plimsoll_kernels.cpu.places import Places
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_runtime.models.cpu_executor.mixer_records import ColumnsParts, LatentParts, activation_of, shape_record
from plimsoll_runtime.models.cpu_executor.ops import (
    FusedAdd,
    FusedAttend,
    FusedColumns,
    FusedEmbed,
    FusedExperts,
    FusedGate,
    FusedHeads,
    FusedNorm,
    FusedOp,
    FusedPositions,
    FusedProduct,
    FusedRoute,
)
from plimsoll_runtime.models.layers.attention import slopes_of
from plimsoll_runtime.models.ops.embed import rounded
from plimsoll_runtime.models.ops.experts import Experts
from plimsoll_runtime.models.ops.logits import Logits
from plimsoll_runtime.models.ops.matmul import GatedProduct
from plimsoll_runtime.models.ops.pooling_head import PooledHead
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.spec.feed_forward import TopK
from plimsoll_runtime.models.weight_reader import WeightReader


class RecordBuilder:
    """Makes what the kernels read of ops and their weights. `kept`: what owns the memory that records point to."""

    def __init__(self, found: KernelsRecord, reader: WeightReader, places: Places, program: Program) -> None:
        self._found = found
        self._reader = reader
        self._places = places
        self._ropes = program.ropes
        self.kept: list[object] = []
        self._latents = LatentParts(found, reader, places, program.ropes, self.kept, self._scale)
        self._columns = ColumnsParts(reader, self._kept)
        self._embedding, self._output = self._ends(program)

    def _ends(self, program: Program) -> tuple[Tensor | PackedLinear, PackedLinear | None]:
        """The embedding and the output layer: the same one where they are tied, no output layer without logits."""
        embed, head = program.ops[0].weights()[0], program.head
        if isinstance(head, PooledHead):
            return self._table(embed), None
        bias = None if head.bias is None else self._reader.read(head.bias)
        table = None if head.head.tied else self._table(embed)
        output = PackedLinear(self._found, self._reader.read(head.weight), bias, self._places)
        self._reader.forget(head.weight)
        return output if table is None else table, output

    def _table(self, embed: Weight) -> Tensor:
        return self._places.keep(self._reader.read(embed, keep=not self._places.copies))

    def head(self, head: Logits | PooledHead) -> Callable[[Tensor], Tensor]:
        """What computes logits or, in torch, what becomes of pooled vectors."""
        if isinstance(head, PooledHead):
            return head.compiled(_Kept(self._reader, self._places))
        output, buffer, finished = self._output, Buffer(), head.finished
        assert output is not None
        return lambda hidden: finished(output(hidden, buffer))

    def record(self, op: FusedOp) -> AnyOp:
        """An op's own record."""
        match op:
            case FusedEmbed():
                return self._embed(op)
            case FusedPositions():
                table = self._kept(self._reader.read(op.op.table, keep=not self._places.copies))
                return PositionsRecord(table, op.target, op.op.table.shape[1], op.op.first)
            case FusedNorm():
                return self._norm(op)
            case FusedProduct():
                return self._product(op)
            case FusedHeads():
                return self._heads(op)
            case FusedAttend():
                return self._attend(op)
            case FusedAdd():
                return AddRecord(op.source, op.added, op.target, op.op.width, op.op.scale)
            case FusedRoute():
                return self._route(op)
            case FusedExperts():
                return self._experts(op)
            case FusedColumns():
                return self._columns.record(op)
            case FusedGate():
                weight = self._kept(self._reader.read(op.op.weight).float())
                width = op.op.weight.shape[1]
                return GateRecord(weight, op.source, op.target, width, width)
            case _:
                return self._latents.record(op)

    def _embed(self, op: FusedEmbed) -> EmbedRecord:
        found, scale = self._embedding, op.op.scale
        self.kept += [found, self._output]
        vocab, width = op.op.table.shape
        texts = op.op.texts
        return EmbedRecord(
            table=found.data_ptr() if isinstance(found, Tensor) else None,
            packed=found.weight.data_ptr() if isinstance(found, PackedLinear) else None,
            texts=None if texts is None else self._kept(self._reader.read(texts, keep=not self._places.copies)),
            target=op.target,
            width=width,
            vocab=vocab,
            scale=1.0 if scale is None else rounded(scale, self._reader.dtype),
        )

    def _norm(self, op: FusedNorm) -> NormRecord:
        record = NormRecord(
            source=op.source, target=op.target, width=op.width, first=op.first, adds=op.adds, norm=Normed.AS_IS
        )
        if (norm := op.norm) is not None:
            record.norm, record.eps = Normed[norm.kind.upper()], norm.eps
            record.weight = self._scale(op.weight, op.width, norm.offset, op.scale)
            if op.bias is not None:
                record.bias = self._kept(self._reader.read(op.bias) * op.scale)
        return record

    def _product(self, op: FusedProduct) -> ProductRecord:
        product = op.op
        bias = self._reader.joined(product.biases) if product.biases else None
        linear: PackedLinear | PackedGatedLinear
        activation = activation_of(product.activation)
        limit = None
        if isinstance(product, GatedProduct):
            gate, up = self._gate_up(product.parts)
            linear = PackedGatedLinear(self._found, gate, up, bias, self._places)
        else:
            limit = product.clip
            linear = PackedLinear(self._found, self._reader.joined(product.parts), bias, self._places)
        self.kept.append(linear)
        return ProductRecord(
            linear.record, op.source, op.target, op.into, activation, op.scale, inf if limit is None else limit
        )

    def _attend(self, op: FusedAttend) -> AttendRecord:
        attend = op.op
        slopes = slopes_of(attend.shape)
        self.kept.append(slopes)
        sinks = None if attend.sinks is None else self._kept(self._reader.read(attend.sinks))
        return AttendRecord(shape_record(attend.shape, slopes, sinks), attend.layer, op.source, op.target)

    def _heads(self, op: FusedHeads) -> HeadsRecord:
        record = HeadsRecord(
            shape=shape_record(op.attend.shape), layer=op.attend.layer, source=op.source, target=op.target, rope=-1
        )
        if op.rotate is not None:
            rope = op.rotate.rope
            record.rope, record.rotated, record.pairs = self._ropes.index(rope), rope.head_dim, rope.pairs
        if (growth := op.growth) is not None:
            record.growth, record.growth_every, record.growth_offset = growth.scale, growth.every, growth.offset
        if op.norm is not None:
            norm, head_dim = op.norm.norm, op.attend.shape.head_dim
            record.norm, record.eps, record.turned = Normed[norm.norm.kind.upper()], norm.norm.eps, op.turned
            record.norm_step = head_dim if norm.own else 0
            record.query_norm, record.key_norm = (
                self._scale(weight, head_dim if weight is None else weight.shape[0], norm.norm.offset)
                for weight in (op.norm.query, op.norm.key)
            )
        return record

    def _route(self, op: FusedRoute) -> RouteRecord:
        route = op.op
        experts, hidden = route.weight.shape
        record = RouteRecord(
            weight=self._kept(self._reader.read(route.weight, keep=not self._places.copies)),
            bias=None if route.bias is None else self._kept(self._reader.read(route.bias)),
            correction=None if route.correction is None else self._kept(self._reader.read(route.correction)),
            **{name: getattr(op, name) for name in ("source", "scores", "shares", "numbers")},
            hidden=hidden,
            experts=experts,
            chosen=route.chosen,
        )
        if isinstance(rule := route.routing, TopK):
            record.rule = Rule[rule.scores.upper()]
            for name in ("groups", "open_groups", "best", "renormalised", "least", "scale"):
                setattr(record, name, getattr(rule, name))
        else:
            record.rule, record.jitter = Rule.SPARSE_MIXER, rule.jitter
        return record

    def _experts(self, op: FusedExperts) -> ExpertsRecord:
        experts = op.op

        def gate_up(number: int) -> Sequence[Tensor]:
            parts = experts.gate_up[number]
            return self._gate_up(parts) if experts.gated else [self._reader.joined(parts)]

        def down(number: int) -> Tensor:
            return self._reader.read(experts.down[number])

        sizes = ExpertSizes(len(experts.down), experts.hidden, experts.inner)
        packed = PackedExperts(
            *(self._found, sizes, gate_up, down, self._reader.dtype, self._places),
            gated=experts.gated,
            biases=self._biases(experts) if experts.down_biases else None,
        )
        self.kept.append(packed)
        record = ExpertsRecord(
            *(packed.gate_up, packed.down),
            *(op.source, op.shares, op.numbers, op.target),
            *(sizes.experts, experts.chosen, activation_of(experts.activation), op.adds),
            *(experts.gated, experts.weighs_inputs, op.scale),
        )
        if (clamped := experts.clamped) is not None:
            record.alpha, record.limit = clamped.alpha, clamped.limit
        return record

    def _biases(self, experts: Experts) -> tuple[Tensor, Tensor]:
        """float32, of each expert's first and second product."""
        first = torch.stack([self._reader.joined(parts) for parts in experts.gate_up_biases])
        return first, torch.stack([self._reader.read(bias) for bias in experts.down_biases])

    def _scale(self, weight: Weight | None, width: int, offset: float, scale: float = 1.0) -> int:
        """The address of what is normed is multiplied by: the weight with the offset that is added to it, or ones."""
        found = torch.ones(width) if weight is None else self._reader.read(weight).float() + offset
        return self._kept(found if scale == 1.0 else found * scale)

    def _kept(self, tensor: Tensor) -> int:
        """The address of a tensor that is kept as it is."""
        kept = self._places.keep(tensor)
        self.kept.append(kept)
        return kept.data_ptr()

    def _gate_up(self, parts: Sequence[Weight]) -> Sequence[Tensor]:
        """The gate and what it opens, which may be stored as one."""
        if len(parts) == 1:
            return self._reader.read(parts[0]).chunk(2)
        return [self._reader.read(part) for part in parts]


class _Kept:
    """See Weights: tensors that lie in their places as they are."""

    def __init__(self, reader: WeightReader, places: Places) -> None:
        self._reader = reader
        self._places = places
        self.device = reader.device

    def read(self, weight: Weight, *, keep: bool = False) -> Tensor:
        """See Weights."""
        return self._places.keep(self._reader.read(weight, keep=keep))

    def joined(self, weights: Sequence[Weight]) -> Tensor:
        """See Weights."""
        return torch.cat([self.read(weight) for weight in weights])
