"""Lowers a program to the ops of the CPU kernels, whose values are in buffers that they share over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from plimsoll_kernels.cpu.op_records import RESULT, SCORE_ROWS, WIDEST, Into
from plimsoll_runtime.models.cpu_executor.ops import (
    ByColumn,
    ColumnsOp,
    FusedAbsorb,
    FusedAdd,
    FusedAttend,
    FusedAttendLatent,
    FusedColumns,
    FusedEmbed,
    FusedExpand,
    FusedExperts,
    FusedGate,
    FusedHeads,
    FusedLatent,
    FusedLatentOp,
    FusedNorm,
    FusedOp,
    FusedPositions,
    FusedProduct,
    FusedProgram,
    FusedRoute,
    head_stride,
)
from plimsoll_runtime.models.cpu_executor.support import UnfusableError, check
from plimsoll_runtime.models.cpu_executor.values import Values
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attention import Attend
from plimsoll_runtime.models.ops.causal_conv import Convolve
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.delta_rule import DeltaRule
from plimsoll_runtime.models.ops.embed import AddPositions, Embed
from plimsoll_runtime.models.ops.experts import Experts, Gate
from plimsoll_runtime.models.ops.gated_recurrence import GatedRecurrence
from plimsoll_runtime.models.ops.heads import NormHeads, Rotate, ScaleQueries
from plimsoll_runtime.models.ops.mamba2_scan import DualScan
from plimsoll_runtime.models.ops.mamba_scan import SelectiveScan
from plimsoll_runtime.models.ops.matmul import GatedProduct, Product
from plimsoll_runtime.models.ops.mla import Absorb, AttendLatent, Expand, Latent
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.norm import GatedNorm, Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.router import Route
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.split import Split
from plimsoll_runtime.models.program import Program


def split(values: Values, op: Split) -> Iterator[FusedColumns]:
    """Parts stay where they lie for those that read columns; the others get copies."""
    [whole] = op.reads
    values.at += 1
    if whole not in op.writes and values.lives(whole):
        raise UnfusableError(f"splits {whole}, which is read as a whole behind that")
    values.views(whole, [*zip(op.writes, op.widths, strict=True)])
    for name, width in zip(op.writes, op.widths, strict=True):
        if values.lives(name) and not values.is_read_by(name, _reads_columns):
            yield _copied(values, name, width, op.kind)


def _reads_columns(op: Op | None) -> bool:
    return isinstance(op, ColumnsOp | Split)


def _copied(values: Values, name: str, width: int, kind: OpKind) -> FusedColumns:
    source = values.part(name, width)
    target = values.written(name, width, operands=values.is_multiplied(name), apart=[source.place])
    return FusedColumns(Scale((width,), (1.0,), (name,), (name,), kind), (source,), target)


def over_columns(values: Values, op: ColumnsOp) -> Iterator[FusedColumns]:
    """One of their own ops. Where it may write where it reads it does if that begins with its place's first column."""
    widths, width = widths_of(op)
    sources = tuple(values.part(name, each) for name, each in zip(op.reads, widths, strict=True))
    for number, (name, source) in enumerate(zip(op.reads, sources, strict=True)):
        opened = isinstance(op, Multiply) and number == 0
        if not opened and not values.floats_lie(source.place):
            raise UnfusableError(f"gives {name} to products alone")
    scratch = None
    if isinstance(op, GatedRecurrence):
        scratch = values.scratch("gates", 2 * width, operands=False)
    values.at += 1
    [name] = op.writes
    apart = [source.place for source in sources if source.first or not isinstance(op, ByColumn)]
    target = values.written(name, width, operands=values.is_multiplied(name), apart=apart)
    yield FusedColumns(op, sources, target, scratch)


def widths_of(op: ColumnsOp) -> tuple[tuple[int, ...], int]:
    """Of what an op reads, and of what it writes."""
    match op:
        case Scale():
            return (sum(op.widths),), sum(op.widths)
        case Multiply() | GatedNorm():
            return (op.width, op.width), op.width
        case Convolve():
            return (op.weight.shape[0],), op.weight.shape[0]
        case DualScan():
            return (op.shape.mixed, op.shape.heads), op.shape.inner
        case DeltaRule():
            heads = op.shape.value_heads
            return (op.shape.mixed, heads, heads), op.shape.values
        case SelectiveScan():
            width, count = op.decay.shape
            return (width, width, count, count), width
        case GatedRecurrence():
            width = op.decay.shape[0]
            return (width,), width


LatentOp = Latent | Absorb | AttendLatent | Expand


def over_vectors(values: Values, op: LatentOp, rest: Sequence[Op]) -> Iterator[FusedLatentOp | FusedNorm]:
    """What an op becomes, with those that come after it."""
    own = op.attention
    width, kept = own.rank + own.rope.head_dim, own.heads * head_stride(own.rank)
    [name] = op.writes
    match op:
        case Latent():
            source = values.floats(op.reads[0], width)
            values.at += 1
            values.changed(name, width, source)
            yield FusedLatent(op, _attending(op, rest).layer, source)
        case Absorb():
            source = values.floats(op.reads[0], own.heads * (own.plain + own.rope.head_dim))
            values.at += 1
            between = values.scratch("absorbed", own.heads * head_stride(own.plain))
            yield FusedAbsorb(op, source, between, values.written(name, own.heads * width, operands=True))
        case AttendLatent():
            source = yield from values.operands(op.reads[0], own.heads * width)
            values.at += 1
            yield FusedAttendLatent(op, source, values.written(name, kept, operands=True, beside=source))
        case Expand():
            source = yield from values.operands(op.reads[0], kept)
            values.at += 1
            if not values.is_multiplied(name):
                raise UnfusableError("gives values of vectors to products alone")
            yield FusedExpand(op, source, values.written(name, own.heads * own.value, operands=True, beside=source))


def _attending(op: Latent, rest: Sequence[Op]) -> AttendLatent:
    """The one op that reads the vectors, which lie in the cache alone."""
    readers = [each for each in rest if set(op.writes) & set(each.reads)]
    match readers[:1]:
        case [AttendLatent() as attend] if (
            op.reads == op.writes == attend.reads[1:] and attend.attention == op.attention
        ):
            again = next((n for n, each in enumerate(rest) if set(op.writes) & set(each.writes)), len(rest))
            if not any(set(op.writes) & set(each.reads) for each in rest[rest.index(attend) + 1 : again + 1]):
                return attend
    raise UnfusableError("keeps vectors that one op attends to")


def fused_program(program: Program) -> FusedProgram:
    """Raises UnfusableError, saying what the kernels do not have.

    A value that only products read is stored as operands, any other in floats, of which a product reads a copy. Values
    of one name take turns in one buffer.
    """
    return _Fuser(program).fused()


def why_not_fused(program: Program) -> str | None:
    """None where the kernels compute it."""
    try:
        fused_program(program)
    except UnfusableError as error:
        return str(error)
    return None


class _Fuser:
    def __init__(self, program: Program) -> None:
        self._ops = program.ops
        self._result = program.result
        self._hidden = program.facts.hidden_size
        self._positions = program.facts.max_positions
        self._values = Values(program.ops, program.result)

    def fused(self) -> FusedProgram:
        for op in self._ops:
            check(op)
        if not isinstance(self._ops[0], Embed):
            raise UnfusableError("begins with an embedding, and the model does not")
        found: list[FusedOp] = []
        while (at := self._values.at) < len(self._ops):
            found += self._next(self._ops[at : at + 3])
        if not isinstance(self._ops[-1], Normalise):
            found += self._as_it_is()
        return FusedProgram(tuple(found), self._values.places())

    def _next(self, ops: Sequence[Op]) -> Iterator[FusedOp]:
        """What the next ops become; `_at` is then behind them."""
        match ops:
            case [Embed() as op, *_] if self._values.at == 0:
                return self._embed(op)
            case [AddPositions() as op, *_]:
                return self._add_positions(op)
            case [Product() as product, Add() as add, *_] if self._adds(product, add, 2):
                return self._product_added(product, add)
            case [Product() as product, Normalise() as norm, Add() as add] if self._norms_added(product, norm, add):
                return self._norm_added(product, norm, add)
            case [(Product() | GatedProduct()) as product, *_]:
                return self._product(product)
            case [Normalise() as norm, *_]:
                return self._norm(norm)
            case [NormHeads() | Rotate() | ScaleQueries() | Attend(), *_]:
                return self._attention()
            case [(Latent() | Absorb() | AttendLatent() | Expand()) as op, *_]:
                return over_vectors(self._values, op, self._ops[self._values.at + 1 :])
            case [Route() as route, *_]:
                return self._route(route)
            case [Experts() as experts, Add() as add, *_] if self._adds(experts, add, 2):
                return self._experts(experts, add)
            case [Experts() as experts, *_]:
                return self._experts(experts)
            case [Gate() as gate, *_]:
                return self._gate(gate)
            case [Add() as add, *_]:
                return self._add(add)
            case [Split() as op, *_]:
                return split(self._values, op)
            case [op, *_] if isinstance(op, ColumnsOp):
                return over_columns(self._values, op)
        raise UnfusableError(f"computes no {type(ops[0]).__name__} there")

    def _as_it_is(self) -> Iterator[FusedOp]:
        """What the last op has written, to whoever asked."""
        width = self._hidden
        yield FusedNorm(None, width, self._values.floats(self._result, width), RESULT)

    def _embed(self, op: Embed) -> Iterator[FusedOp]:
        self._values.at += 1
        yield FusedEmbed(op, self._values.written(op.writes[0], op.table.shape[1], operands=False))

    def _add_positions(self, op: AddPositions) -> Iterator[FusedOp]:
        if op.reads != op.writes or op.first < 0 or op.first + self._positions > op.table.shape[0]:
            raise UnfusableError(f"has no row in {op.table} for each of {self._positions} positions")
        target = self._values.floats(op.reads[0], op.table.shape[1])
        self._values.changed(op.reads[0], op.table.shape[1], target)
        self._values.at += 1
        yield FusedPositions(op, target)

    def _norm(self, op: Normalise) -> Iterator[FusedOp]:
        source = self._values.floats(op.reads[0], op.width)
        self._values.at += 1
        [name] = op.writes
        if self._values.at == len(self._ops):
            self._values.forget(name)
            target = RESULT
        else:
            target = self._values.written(name, op.width, operands=self._values.is_multiplied(name))
        yield FusedNorm(op.norm, op.width, source, target, op.weight, op.bias)

    def _product(self, op: Product | GatedProduct) -> Iterator[FusedOp]:
        source = yield from self._values.operands(op.reads[0], op.inputs)
        self._values.at += 1
        [name] = op.writes
        into = Into.OPERANDS if self._values.is_multiplied(name) else Into.FLOATS
        if isinstance(op, GatedProduct):
            if into is Into.FLOATS:
                raise UnfusableError("gives what gates open to products alone")
            into = Into.GATED
        elif (op.activation if into is Into.FLOATS else op.clip) is not None:
            raise UnfusableError("activates what goes to products alone, and cuts what does not")
        target = self._values.written(name, op.outputs, operands=into is not Into.FLOATS, beside=source)
        yield FusedProduct(op, source, target, into)

    def _adds(self, product: Product | Experts, add: Add, ops: int) -> bool:
        """Whether a sum, the last of so many ops, can be made where x lies: of a product that nobody else reads."""
        [written] = product.writes
        x, y = add.reads
        dead = all(name in add.writes or not self._values.lives(name, ops) for name in (x, y))
        plain = isinstance(product, Experts) or (product.activation is None and product.clip is None)
        return y == written != x and dead and plain and self._values.are_floats(x)

    def _norms_added(self, product: Product, norm: Normalise, add: Add) -> bool:
        return norm.reads == norm.writes == product.writes and self._adds(product, add, 3)

    def _product_added(self, product: Product, add: Add) -> Iterator[FusedOp]:
        source = yield from self._values.operands(product.reads[0], product.inputs)
        target = self._values.floats(add.reads[0], product.outputs)
        self._values.at += 2
        self._values.changed(add.writes[0], add.width, target)
        yield FusedProduct(product, source, target, Into.SUM, add.scale)

    def _norm_added(self, product: Product, norm: Normalise, add: Add) -> Iterator[FusedOp]:
        yield from self._product(product)
        source, target = (self._values.floats(name, norm.width) for name in (norm.reads[0], add.reads[0]))
        self._values.at += 2
        self._values.changed(add.writes[0], add.width, target)
        yield FusedNorm(norm.norm, norm.width, source, target, norm.weight, norm.bias, adds=True, scale=add.scale)

    def _route(self, op: Route) -> Iterator[FusedOp]:
        experts, hidden = op.weight.shape
        source = self._values.floats(op.reads[0], hidden)
        self._values.at += 1
        scores = self._values.scratch("scores", SCORE_ROWS * -(-experts // WIDEST) * WIDEST, operands=False)
        shares, numbers = (self._values.written(name, op.chosen, operands=False, beside=source) for name in op.writes)
        yield FusedRoute(op, source, scores, shares, numbers)

    def _experts(self, op: Experts, add: Add | None = None) -> Iterator[FusedOp]:
        states, *chosen = op.reads
        source = self._values.floats(states, op.hidden)
        shares, numbers = (self._values.floats(name, op.chosen) for name in chosen)
        if add is None:
            self._values.at += 1
            target = self._values.written(op.writes[0], op.hidden, operands=False, beside=source)
            yield FusedExperts(op, source, shares, numbers, target)
            return
        target = self._values.floats(add.reads[0], op.hidden)
        self._values.at += 2
        self._values.changed(add.writes[0], add.width, target)
        yield FusedExperts(op, source, shares, numbers, target, adds=True, scale=add.scale)

    def _gate(self, op: Gate) -> Iterator[FusedOp]:
        states, gated = op.reads
        width = op.weight.shape[1]
        source, target = self._values.floats(states, width), self._values.floats(gated, width)
        if op.writes != (gated,) or states == gated:
            raise UnfusableError("gates values where they lie, by others")
        self._values.at += 1
        self._values.changed(gated, width, target)
        yield FusedGate(op, source, target)

    def _add(self, op: Add) -> Iterator[FusedOp]:
        source, added = (self._values.floats(name, op.width) for name in op.reads)
        self._values.at += 1
        yield FusedAdd(op, source, added, self._values.written(op.writes[0], op.width, operands=False))

    def _attention(self) -> Iterator[FusedOp]:
        turns = [*takewhile(lambda op: isinstance(op, NormHeads | Rotate | ScaleQueries), self._ops[self._values.at :])]
        attend = self._ops[self._values.at + len(turns)]
        on_the_way = all(op.reads == op.writes == attend.reads for op in turns)
        norm = next((op for op in turns if isinstance(op, NormHeads)), None)
        rotate = next((op for op in turns if isinstance(op, Rotate)), None)
        scale = turns[-1] if turns and isinstance(turns[-1], ScaleQueries) else None
        once = len(turns) == (norm is not None) + (rotate is not None) + (scale is not None)
        if not isinstance(attend, Attend) or not on_the_way or not once:
            raise UnfusableError("norms heads once and turns them once, on their way to attention")
        shape = attend.shape
        source = self._values.floats(attend.reads[0], shape.query_width + 2 * shape.key_width)
        self._values.at += len(turns) + 1
        [name] = attend.writes
        if self._values.lives(attend.reads[0]) or not self._values.is_read_by(name, _takes_operands):
            raise UnfusableError("gives what attends to products alone")
        turned = norm is not None and turns[0] is rotate
        if norm is not None and norm.norm.together:
            if turned:
                raise UnfusableError("norms all heads together before they turn")
            yield from _norms_together(norm, source)
            norm = None
        queries = self._values.scratch("queries", shape.query_width)
        growth = None if scale is None else scale.growth
        yield FusedHeads(attend, norm, rotate, turned, source, queries, growth)
        yield FusedAttend(attend, queries, self._values.written(name, shape.query_width, operands=True, beside=queries))


def _takes_operands(op: Op | None) -> bool:
    """A product, or a gate that opens what attends."""
    return isinstance(op, Product | GatedProduct | Multiply)


def _norms_together(op: NormHeads, heads: int) -> Iterator[FusedNorm]:
    """All queries of a row in place, then all of its keys."""
    queries, keys = op.shape.query_width, op.shape.key_width
    for weight, width, first in ((op.query, queries, 0), (op.key, keys, queries)):
        yield FusedNorm(op.norm.norm, width, heads, heads, weight, first=first, timed=op.kind)
