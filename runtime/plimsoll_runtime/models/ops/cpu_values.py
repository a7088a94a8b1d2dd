"""Where a program's values are while the CPU kernels walk it, and which of them are still read."""

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
    """The CPU kernels have no such op, or row of ops."""


class CpuOp(NamedTuple):
    """An op of the CPU kernels: `record` makes what they read of it, with the addresses of its weights."""

    kind: OpKind
    record: Callable[[CpuWeights], AnyOp]


class CpuPlace(NamedTuple):
    """Memory for a row of floats, or of operands, as wide as the widest value that is put there; see PlaceRecord."""

    operands: bool
    width: int
    narrowest: int


class CpuReads(Enum):
    """How an op of the CPU kernels reads values.

    - FLOATS: from the first column of a place of floats
    - OPERANDS: as operands, of which copies are made if the value is floats
    - COLUMNS: from any columns of floats
    - GATED: from any columns, of which the first value that it reads may be operands
    """

    FLOATS = auto()
    OPERANDS = auto()
    COLUMNS = auto()
    GATED = auto()


class Reader(Protocol):
    """An op, as far as its values are concerned."""

    cpu_reads: ClassVar[CpuReads]

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads."""

    @property
    def writes(self) -> tuple[str, ...]:
        """The values that it writes."""


class _Columns(NamedTuple):
    """Where a value is: so many columns of a place, from `first` on."""

    place: int
    width: int
    first: int = 0


class CpuValues:
    """The values of a program. `at`: how many of its ops were lowered. What later ones read keeps its place until then.

    `positions`: how many there are. Each name has places of its own, so that a value of one layer is put where that
    of the layer before was.
    """

    def __init__(self, ops: Sequence[Reader], ropes: Sequence[RopeSpec], positions: int) -> None:
        self.ops = ops
        self.ropes = ropes
        self.positions = positions
        self.at = 0
        self._places: list[CpuPlace] = []
        self._numbers: dict[tuple[str, bool, int], int] = {}  # a name's first place of a kind, its second, ...
        self._columns: dict[str, _Columns] = {}
        self._copies: dict[str, int] = {}  # of floats, for products

    def places(self) -> tuple[CpuPlace, ...]:
        """All of them. Raises UnsupportedOpError if the kernels have fewer."""
        if len(self._places) > MAX_PLACES:
            raise UnsupportedOpError(f"has {MAX_PLACES} places for values, and the model needs {len(self._places)}")
        return tuple(self._places)

    def following(self, count: int) -> Sequence[Reader]:
        """At most `count` ops after the one that is being lowered."""
        return self.ops[self.at + 1 : self.at + 1 + count]

    def lives(self, name: str, after: int = 0) -> bool:
        """Whether a value is read, `after` ops from here on, before it is written again."""
        return any(True for _ in self._readers(name, after))

    def is_multiplied(self, name: str) -> bool:
        """Whether all that read a value, from here on, are products."""
        return self.is_read_by(name, CpuReads.OPERANDS)

    def is_read_by(self, name: str, *ways: CpuReads) -> bool:
        """Whether a value is read from here on, and in these ways alone."""
        readers = [*self._readers(name)]
        return bool(readers) and all(op is not None and op.cpu_reads in ways for op in readers)

    def are_floats(self, name: str) -> bool:
        """Whether a value is floats."""
        return not self._places[self._columns[name].place].operands

    def floats(self, name: str, width: int) -> int:
        """The place of a value that has to be floats."""
        if not self.are_floats(name):
            raise UnsupportedOpError(f"gives {name} to products alone")
        return self._place(name, width)

    def operands(self, name: str, width: int) -> Generator[CpuOp, None, int]:
        """The place of a value for products. Floats are copied there once."""
        place = self._place(name, width)
        if not self.are_floats(name):
            return place
        if name not in self._copies:
            self._copies[name] = self.scratch(name, width)
            yield copied(width, place, self._copies[name])
        return self._copies[name]

    def part(self, name: str, width: int) -> PartRecord:
        """The columns of a value, floats or operands."""
        place, own, first = self._columns[name]
        if own != width:
            raise UnsupportedOpError(f"cannot read {width} of the {own} dimensions of {name}")
        return PartRecord(place=place, first=first)

    def over_columns(
        self, op: Reader, widths: Sequence[int], width: int, *, in_place: bool
    ) -> tuple[list[PartRecord], int]:
        """Pass an op of the kind COLUMNS or GATED: the columns that it reads, of these widths, and where it writes.

        `in_place`: what it writes of a column depends on no other column, so that it may write where it reads if that
        begins with its place's first column.
        """
        sources = [self.part(name, each) for name, each in zip(op.reads, widths, strict=True)]
        for number, (name, source) in enumerate(zip(op.reads, sources, strict=True)):
            if self._places[source.place].operands and (number or op.cpu_reads is not CpuReads.GATED):
                raise UnsupportedOpError(f"gives {name} to products alone")
        self.at += 1
        [name] = op.writes
        apart = [source.place for source in sources if source.first or not in_place]
        return sources, self.written(name, width, operands=self.is_multiplied(name), apart=apart)

    def split(self, name: str, parts: Sequence[tuple[str, int]]) -> None:
        """These names and widths are side by side in a value, which nothing reads as a whole any more."""
        whole = self.part(name, sum(width for _, width in parts))
        first = whole.first
        for part, width in parts:
            self.forget(part)
            self._columns[part] = _Columns(whole.place, width, first)
            first += width

    def written(self, name: str, width: int, *, operands: bool, apart: Collection[int] = ()) -> int:
        """The place of a value that is written: neither one of these, nor that of a value that is still read."""
        self.forget(name)
        place = self._take(name, width, self._taken().union(apart), operands=operands)
        self._columns[name] = _Columns(place, width)
        return place

    def changed(self, name: str, width: int, place: int) -> None:
        """A value was made of what was in a place, there."""
        self.forget(name)
        self._columns[name] = _Columns(place, width)

    def forget(self, name: str) -> None:
        """A value is no longer what it was."""
        self._columns.pop(name, None)
        self._copies.pop(name, None)

    def scratch(self, name: str, width: int, *, operands: bool = True) -> int:
        """A place for operands, or floats, that nothing reads by a name."""
        return self._take(name, width, self._taken(), operands=operands)

    def _place(self, name: str, width: int) -> int:
        part = self.part(name, width)
        if part.first:
            raise UnsupportedOpError(f"reads {name} where it does not lie by itself")
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
        """Each op that reads a value; None for the result of the step."""
        for op in self.ops[self.at + after :]:
            if name in op.reads:
                yield op
            if name in op.writes:
                return
        if name in self.ops[-1].writes[:1]:
            yield None


def copied(width: int, source: int, target: int) -> CpuOp:
    """Floats, copied to whatever is at the target."""
    record = NormRecord(source=source, target=target, width=width, norm=Normed.AS_IS)
    return CpuOp(OpKind.NORM, lambda weights: record)


def check_known(record: object, *names: str) -> None:
    """Raises UnsupportedOpError if another field of a record is not its default: the kernels would ignore it."""
    for field in fields(record):  # type: ignore[arg-type]
        if field.name not in (*names, "reads", "writes", "kind") and getattr(record, field.name) != field.default:
            raise UnsupportedOpError(f"knows no {field.name} of {type(record).__name__}")


def activation_of(name: str | None) -> Activation:
    """By its name in a program. Raises UnsupportedOpError for one that the kernels do not have."""
    if name is None:
        return Activation.NONE
    if name.upper() not in Activation.__members__:
        raise UnsupportedOpError(f"has no activation {name}")
    return Activation[name.upper()]
