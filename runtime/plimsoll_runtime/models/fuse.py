"""What the CPU kernels make of a program: rows of its ops become ops of theirs, whose values lie in places.

A value that products read lies there as operands, any other in floats. Values of one name take turns in one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import count, takewhile

from plimsoll_kernels.cpu.op_records import MAX_PLACES, RESULT, Activation, Into, Timed
from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attend import Attend
from plimsoll_runtime.models.ops.embed import Embed
from plimsoll_runtime.models.ops.heads import NormHeads, Rotate
from plimsoll_runtime.models.ops.normalise import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.product import GatedProduct, Product
from plimsoll_runtime.models.program import Program


class UnfusableError(Exception):
    """The kernels have no such row of ops."""


@dataclass(frozen=True, slots=True)
class Place:
    """Room for a row of floats, or of operands, as wide as the widest value that lies there; see PlimsollPlace."""

    operands: bool
    width: int
    narrowest: int


@dataclass(frozen=True, slots=True)
class FusedEmbed:
    """Rows of the table to floats."""

    op: Embed
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return OpKind.EMBED


@dataclass(frozen=True, slots=True)
class FusedNorm:
    """The norm of floats, to what lies at the target; or added to the floats there."""

    op: Normalise
    source: int
    target: int
    adds: bool = False

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return OpKind.NORM


@dataclass(frozen=True, slots=True)
class FusedProduct:
    """Operands to what `into` says."""

    op: Product | GatedProduct
    source: int
    target: int
    into: Into

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return self.op.kind


@dataclass(frozen=True, slots=True)
class FusedHeads:
    """Floats to queries as operands, and keys and values into the cache of `attend`."""

    attend: Attend
    norm: NormHeads | None
    rotate: Rotate
    source: int
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return OpKind.ROPE


@dataclass(frozen=True, slots=True)
class FusedAttend:
    """Queries to what they attend to, operands both."""

    op: Attend
    source: int
    target: int

    @property
    def timed(self) -> OpKind:
        """As what it is timed."""
        return OpKind.ATTENTION


FusedOp = FusedEmbed | FusedNorm | FusedProduct | FusedHeads | FusedAttend


@dataclass(frozen=True, slots=True)
class FusedProgram:
    """What the kernels walk."""

    ops: tuple[FusedOp, ...]
    places: tuple[Place, ...]


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


class _Places:
    """Where live values lie: by a value's name, and by what it is, always in the same place."""

    def __init__(self) -> None:
        self.found: list[Place] = []
        self._keys: dict[tuple[str, bool, int], int] = {}

    def take(self, name: str, width: int, taken: set[int], *, operands: bool) -> int:
        """A place that is not taken."""
        for number in count():
            at = self._keys.setdefault((name, operands, number), len(self.found))
            if at == len(self.found):
                self.found.append(Place(operands, width, width))
            if at not in taken:
                place = self.found[at]
                self.found[at] = Place(operands, max(place.width, width), min(place.narrowest, width))
                return at
        raise AssertionError("one of them is free")


class _Fuser:
    def __init__(self, program: Program) -> None:
        self._ops = program.ops
        self._result = program.result
        self._at = 0
        self._places = _Places()
        self._values: dict[str, tuple[int, int]] = {}  # of those that live: the place and the width

    def fused(self) -> FusedProgram:
        found: list[FusedOp] = []
        if not isinstance(self._ops[0], Embed):
            raise UnfusableError("begins with an embedding, and the model does not")
        while self._at < len(self._ops):
            found += self._next(self._ops[self._at : self._at + 3])
            self._values = {name: value for name, value in self._values.items() if self._lives(name)}
        if not isinstance(found[-1], FusedNorm) or found[-1].target != RESULT:
            raise UnfusableError("ends with a norm, and the model does not")
        if len(self._places.found) > MAX_PLACES:
            raise UnfusableError(f"has {MAX_PLACES} places for values, and the model needs {len(self._places.found)}")
        return FusedProgram(tuple(found), tuple(self._places.found))

    def _next(self, ops: Sequence[Op]) -> Iterator[FusedOp]:
        """What the next ops become; `_at` is then behind them."""
        first = ops[0]
        if first.kind.name not in Timed.__members__:
            raise UnfusableError(f"times nothing as {first.kind}")
        match ops:
            case [Embed() as op, *_] if self._at == 0:
                return self._embed(op)
            case [Product() as product, Add() as add, *_] if self._adds(product, add, 2):
                return self._product_added(product, add)
            case [Product() as product, Normalise() as norm, Add() as add] if self._norms_added(product, norm, add):
                return self._norm_added(product, norm, add)
            case [(Product() | GatedProduct()) as product, *_]:
                return self._product(product)
            case [Normalise() as norm, *_]:
                return self._norm(norm)
            case [NormHeads() | Rotate() | Attend(), *_]:
                return self._attention()
        raise UnfusableError(f"computes no {type(first).__name__} there")

    def _embed(self, op: Embed) -> Iterator[FusedOp]:
        _known(op, "table", "scale")
        self._at += 1
        yield FusedEmbed(op, self._written(op.writes[0], op.table.shape[1], operands=False))

    def _norm(self, op: Normalise) -> Iterator[FusedOp]:
        _check_norm(op)
        source = self._floats(op.reads[0], op.width)
        self._at += 1
        if self._at == len(self._ops):
            yield FusedNorm(op, source, RESULT)
            return
        [name] = op.writes
        yield FusedNorm(op, source, self._written(name, op.width, operands=self._is_multiplied(name)))

    def _product(self, op: Product | GatedProduct) -> Iterator[FusedOp]:
        into = Into.GATED if isinstance(op, GatedProduct) else Into.FLOATS
        _check_product(op)
        source = self._operands(op.reads[0], op.inputs)
        self._at += 1
        [name] = op.writes
        if into is Into.GATED and not self._is_multiplied(name):
            raise UnfusableError("gives what gates open to products alone")
        target = self._written(name, op.outputs, operands=into is Into.GATED, beside=source)
        yield FusedProduct(op, source, target, into)

    def _adds(self, product: Product, add: Add, ops: int) -> bool:
        """Whether a sum, the last of so many ops, can be made where x lies: of a product that nobody else reads."""
        [written] = product.writes
        x, y = add.reads
        after = self._at + ops
        dead = all(name in add.writes or not self._lives(name, after) for name in (x, y))
        return y == written != x and dead and not self._places.found[self._values[x][0]].operands

    def _norms_added(self, product: Product, norm: Normalise, add: Add) -> bool:
        return norm.reads == norm.writes == product.writes and self._adds(product, add, 3)

    def _product_added(self, product: Product, add: Add) -> Iterator[FusedOp]:
        _check_product(product)
        _check_sum(add)
        source, target = self._operands(product.reads[0], product.inputs), self._floats(add.reads[0], product.outputs)
        self._at += 2
        self._values[add.writes[0]] = target, product.outputs
        yield FusedProduct(product, source, target, Into.SUM)

    def _norm_added(self, product: Product, norm: Normalise, add: Add) -> Iterator[FusedOp]:
        yield from self._product(product)
        _check_norm(norm)
        _check_sum(add)
        source, target = (self._floats(name, norm.width) for name in (norm.reads[0], add.reads[0]))
        self._at += 2
        self._values[add.writes[0]] = target, norm.width
        yield FusedNorm(norm, source, target, adds=True)

    def _attention(self) -> Iterator[FusedOp]:
        turns = [*takewhile(lambda op: isinstance(op, NormHeads | Rotate), self._ops[self._at :])]
        attend = self._ops[self._at + len(turns)]
        if (
            not turns
            or not isinstance(attend, Attend)
            or any(op.reads != attend.reads or op.writes != op.reads for op in turns)
        ):
            raise UnfusableError("norms and turns heads on their way to attention alone")
        norm = turns[0] if isinstance(turns[0], NormHeads) else None
        rotate = turns[-1]
        if not isinstance(rotate, Rotate) or len(turns) > 1 + (norm is not None):
            raise UnfusableError("turns heads once, after their norm")
        _check_heads(attend, norm, rotate)
        shape = attend.shape
        source = self._floats(attend.reads[0], shape.query_width + 2 * shape.key_width)
        self._at += len(turns) + 1
        [name] = attend.writes
        if self._lives(attend.reads[0]) or not self._is_multiplied(name):
            raise UnfusableError("gives what attends to products alone")
        queries = self._places.take("queries", shape.query_width, self._taken(), operands=True)
        yield FusedHeads(attend, norm, rotate, source, queries)
        yield FusedAttend(attend, queries, self._written(name, shape.query_width, operands=True, beside=queries))

    def _floats(self, name: str, width: int) -> int:
        """Where a value lies that is floats."""
        place = self._lies(name, width)
        if self._places.found[place].operands:
            raise UnfusableError(f"gives {name} to products alone")
        return place

    def _operands(self, name: str, width: int) -> int:
        """Where a value lies that products read."""
        place = self._lies(name, width)
        if not self._places.found[place].operands:
            raise UnfusableError(f"multiplies what was normed, gated or attended to, and {name} is not")
        return place

    def _lies(self, name: str, width: int) -> int:
        place, there = self._values[name]
        if there != width:
            raise UnfusableError(f"cannot read {width} of the {there} dimensions of {name}")
        return place

    def _written(self, name: str, width: int, *, operands: bool, beside: int | None = None) -> int:
        """Where a value will lie: not where others do that are read from here on, nor in the place `beside`."""
        self._values.pop(name, None)
        taken = self._taken() if beside is None else {*self._taken(), beside}
        place = self._places.take(name, width, taken, operands=operands)
        self._values[name] = place, width
        return place

    def _taken(self) -> set[int]:
        return {place for name, (place, _) in self._values.items() if self._lives(name)}

    def _lives(self, name: str, after: int | None = None) -> bool:
        """Whether a value is read, from here on, before it is written anew."""
        return any(True for _ in self._reading(name, after))

    def _is_multiplied(self, name: str) -> bool:
        """Whether all that read a value, from here on, are products."""
        readers = [*self._reading(name)]
        return bool(readers) and all(isinstance(op, Product | GatedProduct) for op in readers)

    def _reading(self, name: str, after: int | None = None) -> Iterator[Op | None]:
        """Each op that reads a value; None for whoever asked for the step."""
        for op in self._ops[self._at if after is None else after :]:
            if name in op.reads:
                yield op
            if name in op.writes:
                return
        if name == self._result:
            yield None


def _known(record: object, *names: str) -> None:
    """Whatever else a record says has to say nothing: records grow, and nobody is to compute less than they say."""
    for field in fields(record):  # type: ignore[arg-type]
        if field.name not in (*names, "reads", "writes", "kind") and getattr(record, field.name) != field.default:
            raise UnfusableError(f"knows no {field.name} of {type(record).__name__}")


def _check_norm(op: Normalise) -> None:
    _known(op, "norm", "width", "weight")
    _known(op.norm, "eps", "offset")
    if op.weight is None:
        raise UnfusableError("has no norms but root mean square ones with a weight")


def _check_product(op: Product | GatedProduct) -> None:
    if isinstance(op, Product):
        _known(op, "parts", "biases")
        return
    _known(op, "parts", "biases", "activation")
    _check_activation(op.activation)


def _check_activation(name: str) -> None:
    if name.upper() not in Activation.__members__:
        known = ", ".join(member.name.lower() for member in Activation)
        raise UnfusableError(f"has {known} as activations, not {name}")


def _check_sum(op: Add) -> None:
    _known(op, "width")


def _check_heads(attend: Attend, norm: NormHeads | None, rotate: Rotate) -> None:
    _known(attend, "layer", "shape")
    _known(attend.shape, "heads", "kv_heads", "head_dim", "scale", "window", "softcap")
    _known(rotate, "rope", "shape")
    if rotate.rope.pairs or rotate.rope.head_dim != attend.shape.head_dim:
        raise UnfusableError("turns whole heads, one half with the other")
    if norm is not None:
        _known(norm, "norm", "shape", "query", "key")
        _known(norm.norm, "norm")
        _known(norm.norm.norm, "eps", "offset")
