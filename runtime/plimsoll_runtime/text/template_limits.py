"""The budget of one template rendering, in iterations and bytes, and upper bounds for the size of each value it
creates.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError

MOST_ITERATIONS = 1_000_000
"""Limit for all loops of a rendering together, including calls of macros."""
LEAST_BYTES = 2**26
"""Byte budget of any rendering: for all texts, lists and other values created, whether they are kept or not."""
TIMES_INPUT = 32
"""Additional budget per byte of input: templates copy each message a few times."""
READ_SHARE = 64
"""Reading an existing value is charged 1/READ_SHARE of its size."""
KNOWN_BYTES, LOOK_BYTES = 512, 16
"""Bytes charged for storing the weight of a new list or mapping, and for looking at one of its items."""

POINTER, ESCAPED = 8, 12
"""Bytes of a list item, and the most characters that escaping makes of one character."""
_CONTAINERS = (Mapping, list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)


class Weight(NamedTuple):
    """Size and nesting depth of a value as its text would show it: bytes, where shared parts count as often as they
    occur.
    """

    size: int
    depth: int = 0


class Budget:
    """The remaining budget. Every method raises SecurityError if it is exceeded."""

    def __init__(self, *inputs: object) -> None:
        self._iterations = MOST_ITERATIONS
        # Containers do not change, because the sandbox forbids it. The reference keeps their ids from being reused.
        self._known: dict[int, tuple[object, Weight]] = {}
        self._most = self._bytes = sys.maxsize
        self._most = self._bytes = LEAST_BYTES + TIMES_INPUT * sum(self.weigh(value).size for value in inputs)

    def iterate(self) -> None:
        """Count one iteration of a loop."""
        self._iterations -= 1
        if self._iterations < 0:
            raise SecurityError(f"its loops exceed the limit of {MOST_ITERATIONS:,} iterations")

    def afford(self, size: float, what: str) -> None:
        """Check that a value of this size could be created, without charging it."""
        if size > self._bytes:
            raise SecurityError(f"the result of {what} would be too large")

    def spend(self, size: int) -> None:
        """Charge bytes."""
        self._bytes -= size
        if self._bytes < 0:
            raise SecurityError(f"its values exceed the limit of {self._most:,} bytes")

    def read(self, value: object) -> None:
        """Charge for reading a value completely."""
        self.spend(self.weigh(value).size // READ_SHARE)

    def made(self, value: Any) -> Any:
        """Charge for a new value and return it."""
        self.spend(sys.getsizeof(value) + (KNOWN_BYTES if isinstance(value, _CONTAINERS) else 0))
        self.weigh(value)
        return value

    def listed(self, items: Iterable[Any]) -> list[Any]:
        """Return the remaining items of an iterator, charging for each."""
        found = []
        for item in items:
            self.spend(POINTER)
            found.append(item)
        return found

    def text(self, value: object) -> str:
        """Return the text that a template writes for a value, and charge for it."""
        if isinstance(value, str):
            self.spend(sys.getsizeof(value))
            return value
        self.afford(ESCAPED * self.weigh(value).size, "its text")
        return str(self.made(str(value)))

    def weigh(self, value: object) -> Weight:
        """Return a value's weight. Raises SecurityError if it exceeds the whole budget, so that the text of every
        accepted value can be created.
        """
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
        """Charge for a sum or product of lists like `made`, computing its weight from the operands."""
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
            raise SecurityError(f"the text of its nested lists exceeds the limit of {self._most:,} bytes")
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
    """Render within a budget that depends on the inputs."""
    before = _budget.set(Budget(*inputs))
    try:
        yield
    finally:
        _budget.reset(before)


def budget() -> Budget:
    """Return the budget of the current rendering."""
    return _budget.get()


MOST_BITS = 4096
"""Limit for the bits of an integer that is multiplied or raised to a power."""
TOO_LARGE = float("inf")
CHARACTER, PIECE = 4, 64
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
DIGITS = re.compile(r"\d+")

Arguments = Sequence[Any]
Rule = Callable[[Budget, Any, Arguments], float]


def product(operator: str, left: Any, right: Any) -> float:
    """Return an upper bound for the bytes of a product or power: for integers 0, or infinite above MOST_BITS."""
    if isinstance(left, int) and isinstance(right, int):
        raised = left.bit_length() * max(right, 0)
        bits = raised if operator == "**" else left.bit_length() + right.bit_length()
        return TOO_LARGE if bits > MOST_BITS else 0
    if operator == "*":
        for items, times in ((left, right), (right, left)):
            if isinstance(times, int) and hasattr(items, "__len__"):
                return (CHARACTER if isinstance(items, str) else POINTER) * len(items) * max(times, 0)
    return 0


def formatted(budget: Budget, form: Any, values: Any) -> float:
    """Return an upper bound for the bytes of `form % values`. Each placeholder may contain all values, padded to the
    widest width.
    """
    if not isinstance(form, str | bytes):
        return 0
    text = form if isinstance(form, str) else form.decode("latin-1")
    width = widest(text)
    if "*" in text:
        width += max((abs(value) for value in _flat(values) if isinstance(value, int)), default=0)
    return sys.getsizeof(form) + text.count("%") * CHARACTER * (width + ESCAPED * budget.weigh(values).size)


def widest(form: str) -> float:
    """Return the largest number in a format string."""
    return max((int(digits) if len(digits) < 10 else TOO_LARGE for digits in DIGITS.findall(form)), default=0)


def of_filter(budget: Budget, name: str, value: Any, arguments: Arguments) -> float:
    """Return an upper bound for the size of a filter's result, in bytes.

    A filter without a rule counts as the product of its arguments.
    """
    if name in _FILTERS:
        return _FILTERS[name](budget, value, arguments)
    if isinstance(value, str) and name in _METHODS:
        return _METHODS[name](budget, value, arguments)
    return _any(budget, value, arguments)


def of_method(budget: Budget, name: str, value: Any, arguments: Arguments) -> float:
    """Return an upper bound for the size of the result of a text's or number's method."""
    rule = _METHODS.get(name, _any) if isinstance(value, str) else _any
    return rule(budget, value, arguments)


def _lists(_budget: Budget, value: Any, arguments: Arguments) -> float:
    """Return PIECE bytes for each item of the value, and for each unit of the numbers among the arguments, as `batch`
    and `slice` fill up lists.
    """
    items = len(value) if hasattr(value, "__len__") else 0
    return PIECE * (items + sum(_numbers(arguments)))


def _any(budget: Budget, value: Any, arguments: Arguments) -> float:
    size: float = ESCAPED * CHARACTER * budget.weigh(value).size
    for number in _numbers(arguments):
        size *= max(1, number)
    for argument in arguments:
        if not isinstance(argument, int | float):
            size *= 1 + budget.weigh(argument).size // CHARACTER
    return size


def _none(_budget: Budget, _value: Any, _arguments: Arguments) -> float:
    return 0


def _width(_budget: Budget, value: Any, arguments: Arguments) -> float:
    return CHARACTER * (len(str(value)) + sum(_numbers(arguments)))


def _replace(_budget: Budget, value: Any, arguments: Arguments) -> float:
    old, new = (str(argument) for argument in arguments[:2]) if len(arguments) > 1 else ("", "")
    return sys.getsizeof(value) + CHARACTER * str(value).count(old) * len(new)


def _join(budget: Budget, value: str, arguments: Arguments) -> float:
    return _joined(budget, value, arguments[0]) if arguments else 0


def _join_filter(budget: Budget, value: Any, arguments: Arguments) -> float:
    return _joined(budget, arguments[0] if arguments else "", value)


def _joined(budget: Budget, glue: Any, items: Any) -> float:
    if not hasattr(items, "__len__"):
        return TOO_LARGE
    return ESCAPED * budget.weigh(items).size + budget.weigh(glue).size * (len(items) + 1)


def _split(_budget: Budget, value: str, arguments: Arguments) -> float:
    at = next((argument for argument in arguments if isinstance(argument, str) and argument), None)
    pieces = value.count(at) if at is not None else len(value) // 2
    limits = [number for number in arguments if isinstance(number, int) and number >= 0]
    return sys.getsizeof(value) * 2 + PIECE * (1 + min([pieces, *limits]))


def _lines(_budget: Budget, value: str, _arguments: Arguments) -> float:
    return sys.getsizeof(value) * 2 + PIECE * (1 + sum(map(value.count, LINE_ENDS)))


def _indent(budget: Budget, value: Any, arguments: Arguments) -> float:
    if not isinstance(value, str):
        return _any(budget, value, arguments)
    wide = sum(_numbers(arguments)) + sum(len(argument) for argument in arguments if isinstance(argument, str)) + 4
    return sys.getsizeof(value) + CHARACTER * (1 + sum(map(value.count, LINE_ENDS))) * wide


def _truncate(budget: Budget, value: Any, arguments: Arguments) -> float:
    return ESCAPED * (budget.weigh(value).size + budget.weigh(arguments).size)


def _wrap(budget: Budget, value: Any, arguments: Arguments) -> float:
    """Return the bytes of `wordwrap`, as if it made a line of each character, with the line end."""
    size = budget.weigh(value).size
    ends = sum(budget.weigh(argument).size for argument in arguments if isinstance(argument, str))
    return ESCAPED * size * (PIECE + ends)


def _sum(budget: Budget, value: Any, arguments: Arguments) -> float:
    """Return the bytes of `sum`; for lists as if each addition copied the whole value."""
    if not any(hasattr(argument, "__len__") and not isinstance(argument, str) for argument in arguments):
        return 0
    return budget.weigh(value).size * len(value) if hasattr(value, "__len__") else TOO_LARGE


def _json(budget: Budget, value: Any, arguments: Arguments) -> float:
    size, depth = budget.weigh(value)
    wide = sum(_numbers(arguments)) + sum(len(text) for text in _flat(arguments) if isinstance(text, str))
    return ESCAPED * size + size // POINTER * wide * (1 + depth)


def _form(budget: Budget, value: Any, arguments: Arguments) -> float:
    return formatted(budget, value, arguments)


def _text(budget: Budget, value: Any, _arguments: Arguments) -> float:
    return 0 if isinstance(value, str) else ESCAPED * budget.weigh(value).size


def _numbers(arguments: Arguments) -> list[int]:
    return [abs(int(argument)) for argument in arguments if isinstance(argument, int)]


def _flat(values: Any) -> list[Any]:
    if isinstance(values, Mapping):
        return list(values.values())
    return [part for value in values for part in _flat(value)] if isinstance(values, list | tuple) else [values]


_SHORTER = (
    *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal"),
    *("isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower"),
    *("lstrip", "partition", "removeprefix", "removesuffix", "rfind", "rindex", "rpartition", "rstrip", "startswith"),
    *("strip", "swapcase", "title", "upper"),
)
_METHODS: dict[str, Rule] = {
    **dict.fromkeys(_SHORTER, _none),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _width),
    **dict.fromkeys(("split", "rsplit"), _split),
    "splitlines": _lines,
    "replace": _replace,
    "join": _join,
}
_SMALL = (
    *("abs", "attr", "count", "d", "default", "filesizeformat", "first", "float", "int", "items", "last", "length"),
    *("map", "max", "min", "random", "reject", "rejectattr", "round", "select", "selectattr", "wordcount"),
)
_FILTERS: dict[str, Rule] = {
    **dict.fromkeys(_SMALL, _none),
    **dict.fromkeys(("batch", "dictsort", "groupby", "list", "reverse", "slice", "sort", "unique"), _lists),
    **dict.fromkeys(("safe", "string", "trim"), _text),
    "format": _form,
    "indent": _indent,
    "join": _join_filter,
    "sum": _sum,
    "tojson": _json,
    "truncate": _truncate,
    "wordwrap": _wrap,
}
