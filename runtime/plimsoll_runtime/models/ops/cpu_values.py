"""Assigns buffers to a program's values while it is lowered to CPU kernels, and tracks which are still read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import fields
from enum import Enum, auto
from itertools import count
from typing import ClassVar, NamedTuple, Protocol

from plimsoll_kernels.cpu.columns_records import PartRecord
from plimsoll_kernels.cpu.op_records import Activation, AnyOp, Normed, NormRecord
from plimsoll_kernels.cpu.records import MAX_PLACES
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.spec.attention import RopeSpec


class UnsupportedOpError(Exception):
    """The CPU kernels do not support an op, or a sequence of ops."""


class CpuOp(NamedTuple):
    """An op of the CPU kernels. `record` makes its C record, with the addresses of weights."""

    kind: OpKind
    record: Callable[[CpuWeights], AnyOp]


class CpuPlace(NamedTuple):
    """A buffer for a row of floats, or of operands (inputs of the kernels' products); see PlaceRecord.

    `width` and `narrowest` are the columns of the widest and of the narrowest value stored in it.
    """

    operands: bool
    width: int
    narrowest: int


class CpuReads(Enum):
    """How an op of the CPU kernels reads values. Operands are inputs of products, in the kernels' layout.

    - FLOATS: floats, from the first column of a buffer
    - OPERANDS: operands; a float value is copied to operands
    - COLUMNS: floats, from any columns of a buffer
    - GATED: like COLUMNS, but the first value may be operands
    """

    FLOATS = auto()
    OPERANDS = auto()
    COLUMNS = auto()
    GATED = auto()


class Reader(Protocol):
    """The inputs and outputs of an op."""

    cpu_reads: ClassVar[CpuReads]

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values that it reads."""

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the values that it writes."""


class _Columns(NamedTuple):
    """Location of a value: `width` columns of a buffer, starting at `first`."""

    place: int
    width: int
    first: int = 0


class CpuValues:
    """Assigns buffers to a program's values. Methods return a buffer as its index in `places()`.

    `at` is the index of the op to lower next; a value keeps its buffer until its last reader. `positions`: the most
    positions of a sequence. Buffers are reused by name, so a value of one layer takes the buffer of the same value in
    the layer before.
    """

    def __init__(self, ops: Sequence[Reader], ropes: Sequence[RopeSpec], positions: int) -> None:
        self.ops = ops
        self.ropes = ropes
        self.positions = positions
        self.at = 0
        self._places: list[CpuPlace] = []
        self._numbers: dict[tuple[str, bool, int], int] = {}  # a name's first buffer of a kind, its second, ...
        self._columns: dict[str, _Columns] = {}
        self._copies: dict[str, int] = {}  # operand copies of float values

    def places(self) -> tuple[CpuPlace, ...]:
        """Return all buffers. Raises UnsupportedOpError if they exceed the number that the kernels support."""
        if len(self._places) > MAX_PLACES:
            raise UnsupportedOpError(
                f"supports {MAX_PLACES} buffers for values, but the model needs {len(self._places)}"
            )
        return tuple(self._places)

    def following(self, count: int) -> Sequence[Reader]:
        """Return at most `count` ops after the current one."""
        return self.ops[self.at + 1 : self.at + 1 + count]

    def lives(self, name: str, after: int = 0) -> bool:
        """Return whether a value is read before it is overwritten, by an op after the next `after` ones or as the
        step's result.
        """
        return any(True for _ in self._readers(name, after))

    def is_multiplied(self, name: str) -> bool:
        """Return whether a value has later readers, all of which are matrix products."""
        return self.is_read_by(name, CpuReads.OPERANDS)

    def is_read_by(self, name: str, *ways: CpuReads) -> bool:
        """Return whether a value has later readers, all of which read it in one of these ways."""
        readers = [*self._readers(name)]
        return bool(readers) and all(op is not None and op.cpu_reads in ways for op in readers)

    def are_floats(self, name: str) -> bool:
        """Return whether a value is stored as floats."""
        return not self._places[self._columns[name].place].operands

    def floats(self, name: str, width: int) -> int:
        """Return the buffer of a float value. Raises UnsupportedOpError if it is stored as operands."""
        if not self.are_floats(name):
            raise UnsupportedOpError(f"requires that only matrix products read the value {name}")
        return self._place(name, width)

    def operands(self, name: str, width: int) -> Generator[CpuOp, None, int]:
        """Return the buffer of a value as operands. If it is stored as floats, yields an op that copies it (once)."""
        place = self._place(name, width)
        if not self.are_floats(name):
            return place
        if name not in self._copies:
            self._copies[name] = self.scratch(name, width)
            yield copied(width, place, self._copies[name])
        return self._copies[name]

    def part(self, name: str, width: int) -> PartRecord:
        """Return the buffer and first column of a value of `width` columns, floats or operands. Raises
        UnsupportedOpError if its width differs.
        """
        place, own, first = self._columns[name]
        if own != width:
            raise UnsupportedOpError(f"does not support reading {width} of the {own} columns of {name}")
        return PartRecord(place=place, first=first)

    def over_columns(
        self, op: Reader, widths: Sequence[int], width: int, *, in_place: bool
    ) -> tuple[list[PartRecord], int]:
        """Advance past an op whose `cpu_reads` is COLUMNS or GATED. Return its input columns, of these widths, and its
        output buffer.

        `in_place`: each output column depends only on its own input columns, so the op may write to an input that
        starts at the first column of its buffer.
        """
        sources = [self.part(name, each) for name, each in zip(op.reads, widths, strict=True)]
        for number, (name, source) in enumerate(zip(op.reads, sources, strict=True)):
            if self._places[source.place].operands and (number or op.cpu_reads is not CpuReads.GATED):
                raise UnsupportedOpError(f"requires that only matrix products read the value {name}")
        self.at += 1
        [name] = op.writes
        apart = [source.place for source in sources if source.first or not in_place]
        return sources, self.written(name, width, operands=self.is_multiplied(name), apart=apart)

    def split(self, name: str, parts: Sequence[tuple[str, int]]) -> None:
        """Register values that are the columns of another value, which is not read as a whole any more."""
        whole = self.part(name, sum(width for _, width in parts))
        first = whole.first
        for part, width in parts:
            self.forget(part)
            self._columns[part] = _Columns(whole.place, width, first)
            first += width

    def written(self, name: str, width: int, *, operands: bool, apart: Collection[int] = ()) -> int:
        """Return a buffer for a value that is written. It is not one of `apart`, nor that of a value that is still
        read.
        """
        self.forget(name)
        place = self._take(name, width, self._taken().union(apart), operands=operands)
        self._columns[name] = _Columns(place, width)
        return place

    def changed(self, name: str, width: int, place: int) -> None:
        """Register that an op has written a value to an existing buffer in place."""
        self.forget(name)
        self._columns[name] = _Columns(place, width)

    def forget(self, name: str) -> None:
        """Remove a value that is overwritten."""
        self._columns.pop(name, None)
        self._copies.pop(name, None)

    def scratch(self, name: str, width: int, *, operands: bool = True) -> int:
        """Return a buffer for temporary operands or floats."""
        return self._take(name, width, self._taken(), operands=operands)

    def _place(self, name: str, width: int) -> int:
        part = self.part(name, width)
        if part.first:
            raise UnsupportedOpError(f"does not support reading {name} from within another value")
        return part.place

    def _take(self, name: str, width: int, taken: set[int], *, operands: bool) -> int:
        for number in count():
            at = self._numbers.setdefault((name, operands, number), len(self._places))
            if at == len(self._places):
                self._places.append(CpuPlace(operands, width, width))
            if at not in taken:
                break
        place = self._places[at]
        self._places[at] = CpuPlace(operands, max(place.width, width), min(place.narrowest, width))
        return at

    def _taken(self) -> set[int]:
        lives = {name for name in self._columns if self.lives(name)}
        return {
            *(self._columns[name].place for name in lives),
            *(self._copies[name] for name in lives & self._copies.keys()),
        }

    def _readers(self, name: str, after: int = 0) -> Iterator[Reader | None]:
        """Yield each op that reads a value before it is overwritten; None stands for the step's result."""
        for op in self.ops[self.at + after :]:
            if name in op.reads:
                yield op
            if name in op.writes:
                return
        if name in self.ops[-1].writes[:1]:
            yield None


def copied(width: int, source: int, target: int) -> CpuOp:
    """Return an op that copies floats to a buffer of floats or of operands."""
    record = NormRecord(source=source, target=target, width=width, norm=Normed.AS_IS)
    return CpuOp(OpKind.NORM, lambda weights: record)


def check_known(record: object, *names: str) -> None:
    """Raise UnsupportedOpError if a field other than `names` differs from its default: the kernels would ignore it."""
    for field in fields(record):  # type: ignore[arg-type]
        if field.name not in (*names, "reads", "writes", "kind") and getattr(record, field.name) != field.default:
            raise UnsupportedOpError(f"does not support the field {field.name} of {type(record).__name__}")


def activation_of(name: str | None) -> Activation:
    """Return the kernels' activation of a name; None: no activation. Raises UnsupportedOpError for an unknown name."""
    if name is None:
        return Activation.NONE
    if name.upper() not in Activation.__members__:
        raise UnsupportedOpError(f"does not support the activation {name}")
    return Activation[name.upper()]
