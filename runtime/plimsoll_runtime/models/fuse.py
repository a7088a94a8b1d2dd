"""What the CPU kernels make of a program: rows of its ops become ops of theirs, whose values lie in places.

A value that only products read lies there as operands, any other in floats, of which a product reads a copy. Values of
one name take turns in one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from plimsoll_kernels.cpu.op_records import RESULT, SCORE_ROWS, WIDEST, Into
from plimsoll_runtime.models.fusable import UnfusableError, check
from plimsoll_runtime.models.fuse_columns import over_columns, split
from plimsoll_runtime.models.fuse_latent import over_vectors
from plimsoll_runtime.models.fused_columns import ColumnsOp
from plimsoll_runtime.models.fused_ops import (
    FusedAdd,
    FusedAttend,
    FusedEmbed,
    FusedExperts,
    FusedGate,
    FusedHeads,
    FusedNorm,
    FusedOp,
    FusedPositions,
    FusedProduct,
    FusedProgram,
    FusedRoute,
)
from plimsoll_runtime.models.fused_values import Values
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attend import Attend
from plimsoll_runtime.models.ops.embed import AddPositions, Embed
from plimsoll_runtime.models.ops.experts import Experts, Gate
from plimsoll_runtime.models.ops.heads import NormHeads, Rotate, ScaleQueries
from plimsoll_runtime.models.ops.latent import Absorb, AttendLatent, Expand, Latent
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.normalise import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.product import GatedProduct, Product
from plimsoll_runtime.models.ops.route import Route
from plimsoll_runtime.models.ops.split import Split
from plimsoll_runtime.models.program import Program


def fused_program(program: Program) -> FusedProgram:
    """Raises UnfusableError, saying what the kernels do not have."""
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
