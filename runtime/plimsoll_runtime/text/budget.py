"""What one rendering of a template may do: iterations of its loops, and bytes of all that it makes."""

from __future__ import annotations

import sys
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError

MOST_ITERATIONS = 1_000_000
"""Of all loops of a rendering together, calls of macros included."""
LEAST_BYTES = 2**26
"""For any rendering, of all texts, lists and other values that are made in it, whether they are kept or not."""
TIMES_INPUT = 32
"""And so many times what is rendered: templates copy each message a few times."""
READ_SHARE = 64
"""To read a value that is there costs this part of making it."""
KNOWN_BYTES, LOOK_BYTES = 512, 16
"""What is kept of each list or mapping beside it, and what it costs to look at one of its items."""

POINTER, ESCAPED = 8, 12
"""Bytes of an item of a list, and characters that one becomes at most where it is escaped."""
_CONTAINERS = (Mapping, list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)


class Weight(NamedTuple):
    """Of a value as its text would show it: bytes, with all that is in it as often as it is there; levels below it."""

    size: int
    depth: int = 0


class Budget:
    """What is left. Every method raises SecurityError where that is not enough."""

    def __init__(self, *inputs: object) -> None:
        self._iterations = MOST_ITERATIONS
        # Containers do not change: the sandbox lets no template do that. To hold them keeps their ids theirs.
        self._known: dict[int, tuple[object, Weight]] = {}
        self._most = self._bytes = sys.maxsize
        self._most = self._bytes = LEAST_BYTES + TIMES_INPUT * sum(self.weigh(value).size for value in inputs)

    def iterate(self) -> None:
        """A loop goes round once more."""
        self._iterations -= 1
        if self._iterations < 0:
            raise SecurityError(f"its loops run for more than {MOST_ITERATIONS:,} iterations")

    def afford(self, size: float, what: str) -> None:
        """Whether so many bytes could be made. They are not taken yet."""
        if size > self._bytes:
            raise SecurityError(f"the result of {what} would be too large")

    def spend(self, size: int) -> None:
        """So many bytes are made."""
        self._bytes -= size
        if self._bytes < 0:
            raise SecurityError(f"what it makes takes more than {self._most:,} bytes")

    def read(self, value: object) -> None:
        """A value is read from end to end."""
        self.spend(self.weigh(value).size // READ_SHARE)

    def made(self, value: Any) -> Any:
        """The same value, which is new."""
        self.spend(sys.getsizeof(value) + (KNOWN_BYTES if isinstance(value, _CONTAINERS) else 0))
        self.weigh(value)
        return value

    def listed(self, items: Iterable[Any]) -> list[Any]:
        """What an iterator still has."""
        found = []
        for item in items:
            self.spend(POINTER)
            found.append(item)
        return found

    def text(self, value: object) -> str:
        """What a template writes for it."""
        if isinstance(value, str):
            self.spend(sys.getsizeof(value))
            return value
        self.afford(ESCAPED * self.weigh(value).size, "its text")
        return str(self.made(str(value)))

    def weigh(self, value: object) -> Weight:
        """No value that is there weighs more than may be made in all, so that its text can always be made."""
        if not isinstance(value, _CONTAINERS):
            return Weight(sys.getsizeof(value))
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        size, depth = sys.getsizeof(value), 0
        for part in _parts(value):
            self.spend(LOOK_BYTES)
            weight = self.weigh(part)
            size, depth = size + weight.size, max(depth, weight.depth + 1)
            if size > self._most:
                break
        return self._know(value, Weight(size, depth))

    def summed(self, value: Any, operator: str, left: Any, right: Any) -> Any:
        """As `made`, of a sum or product of lists, whose items need not be looked at again."""
        weights = [self.weigh(part) for part in (left, right)]
        if isinstance(value, list | tuple):
            size = weights[0].size + weights[1].size
            if operator == "*":
                items, times = (0, right) if isinstance(right, int) else (1, left)
                size = weights[items].size * max(1, times)
            self._know(value, Weight(size, max(weight.depth for weight in weights)))
        return self.made(value)

    def _know(self, value: object, weight: Weight) -> Weight:
        if weight.size > self._most:
            raise SecurityError(f"it nests lists whose text would take more than {self._most:,} bytes")
        self._known[id(value)] = value, weight
        return weight


def _parts(container: Any) -> Iterator[object]:
    if isinstance(container, Mapping):
        yield from container
        yield from container.values()
    else:
        yield from container


_budget: ContextVar[Budget] = ContextVar("the budget of the rendering")


@contextmanager
def bounded(*inputs: object) -> Iterator[None]:
    """A rendering of these: what it does counts from here."""
    before = _budget.set(Budget(*inputs))
    try:
        yield
    finally:
        _budget.reset(before)


def budget() -> Budget:
    """That of the rendering that goes on."""
    return _budget.get()
