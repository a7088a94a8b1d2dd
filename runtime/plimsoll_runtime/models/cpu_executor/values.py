"""Where a program's values lie while the kernels walk it, and which of them are still read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from plimsoll_kernels.cpu.op_records import MAX_PLACES
from plimsoll_runtime.models.cpu_executor.ops import ColumnRange, FusedNorm, ValueBuffer
from plimsoll_runtime.models.cpu_executor.support import UnfusableError
from plimsoll_runtime.models.ops.matmul import GatedProduct, Product
from plimsoll_runtime.models.ops.op import Op


class _Lying(NamedTuple):
    """Where a value lies: so many columns of a place, from `first` on."""

    place: int
    width: int
    first: int = 0


class Values:
    """Of the ops before `at`, which moves on as they are fused. What is read later keeps its place until then."""

    def __init__(self, ops: Sequence[Op], result: str) -> None:
        self.at = 0
        self._ops = ops
        self._result = result
        self._places: list[ValueBuffer] = []
        self._numbers: dict[tuple[str, bool, int], int] = {}  # a name's first place of a kind, its second, ...
        self._lie: dict[str, _Lying] = {}
        self._copies: dict[str, int] = {}  # of floats, for products

    def places(self) -> tuple[ValueBuffer, ...]:
        """All that there are."""
        if len(self._places) > MAX_PLACES:
            raise UnfusableError(f"has {MAX_PLACES} places for values, and the model needs {len(self._places)}")
        return tuple(self._places)

    def lives(self, name: str, after: int = 0) -> bool:
        """Whether a value is read, so many ops from here on, before it is written anew."""
        return any(True for _ in self._reading(name, after))

    def is_multiplied(self, name: str) -> bool:
        """Whether all that read a value, from here on, are products."""
        return self.is_read_by(name, lambda op: isinstance(op, Product | GatedProduct))

    def is_read_by(self, name: str, kind: Callable[[Op | None], bool]) -> bool:
        """Whether a value is read from here on, and by such ops alone."""
        readers = [*self._reading(name)]
        return bool(readers) and all(kind(op) for op in readers)

    def are_floats(self, name: str) -> bool:
        """Whether a value lies there in floats."""
        return self.floats_lie(self._lie[name].place)

    def floats_lie(self, place: int) -> bool:
        """Whether a place is one of floats."""
        return not self._places[place].operands

    def floats(self, name: str, width: int) -> int:
        """Where a value lies in floats."""
        if not self.are_floats(name):
            raise UnfusableError(f"gives {name} to products alone")
        return self._place(name, width)

    def operands(self, name: str, width: int) -> Generator[FusedNorm, None, int]:
        """Where a value lies for products. Floats are copied there once."""
        place = self._place(name, width)
        if not self.are_floats(name):
            return place
        if name not in self._copies:
            self._copies[name] = self.scratch(name, width)
            yield FusedNorm(None, width, place, self._copies[name])
        return self._copies[name]

    def part(self, name: str, width: int) -> ColumnRange:
        """The columns where a value lies, in floats or as operands."""
        place, there, first = self._lie[name]
        if there != width:
            raise UnfusableError(f"cannot read {width} of the {there} dimensions of {name}")
        return ColumnRange(place, first)

    def views(self, name: str, parts: Sequence[tuple[str, int]]) -> None:
        """These names and widths lie side by side in a value, which nobody reads as a whole any more."""
        place, first = self.part(name, sum(width for _, width in parts))
        for part, width in parts:
            self.forget(part)
            self._lie[part] = _Lying(place, width, first)
            first += width

    def written(
        self, name: str, width: int, *, operands: bool, beside: int | None = None, apart: Collection[int] = ()
    ) -> int:
        """Where a value will lie: not where others do that are read from here on, nor in these places."""
        self.forget(name)
        place = self._take(name, width, self._taken() | {beside, *apart}, operands=operands)
        self._lie[name] = _Lying(place, width)
        return place

    def changed(self, name: str, width: int, place: int) -> None:
        """A value was made of what lay in a place, there."""
        self.forget(name)
        self._lie[name] = _Lying(place, width)

    def forget(self, name: str) -> None:
        """A value is no more what it was."""
        self._lie.pop(name, None)
        self._copies.pop(name, None)

    def scratch(self, name: str, width: int, *, operands: bool = True) -> int:
        """A place for operands, or floats, that nobody reads by a name."""
        return self._take(name, width, self._taken(), operands=operands)

    def _place(self, name: str, width: int) -> int:
        place, first = self.part(name, width)
        if first:
            raise UnfusableError(f"reads {name} where it does not lie by itself")
        return place

    def _take(self, name: str, width: int, taken: set[int | None], *, operands: bool) -> int:
        for number in count():
            at = self._numbers.setdefault((name, operands, number), len(self._places))
            if at == len(self._places):
                self._places.append(ValueBuffer(operands, width, width))
            if at not in taken:
                break
        place = self._places[at]
        self._places[at] = ValueBuffer(operands, max(place.width, width), min(place.narrowest, width))
        return at

    def _taken(self) -> set[int | None]:
        lives = {name for name in self._lie if self.lives(name)}
        return {
            *(self._lie[name].place for name in lives),
            *(self._copies[name] for name in lives & self._copies.keys()),
        }

    def _reading(self, name: str, after: int = 0) -> Iterator[Op | None]:
        """Each op that reads a value; None for whoever asked for the step."""
        for op in self._ops[self.at + after :]:
            if name in op.reads:
                yield op
            if name in op.writes:
                return
        if name == self._result:
            yield None
