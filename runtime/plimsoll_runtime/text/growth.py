"""How large at most what a template asks for becomes, before it is made: of operators, filters and methods.

Bytes, and rather too many. What is not named here is held to make the product of all that it is given.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plimsoll_runtime.text.budget import ESCAPED, POINTER, Budget

MOST_BITS = 4096
"""Of a whole number that is multiplied or raised to a power."""
TOO_LARGE = float("inf")
CHARACTER, PIECE = 4, 64
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
DIGITS = re.compile(r"\d+")

Arguments = Sequence[Any]
Rule = Callable[[Budget, Any, Arguments], float]


def product(operator: str, left: Any, right: Any) -> float:
    """Of `*` and `**`; infinite for a number that has too many digits."""
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
    """Of a `%` between a text and what is put into it: each place may have all of it, and be as wide as it says."""
    if not isinstance(form, str | bytes):
        return 0
    text = form if isinstance(form, str) else form.decode("latin-1")
    width = widest(text)
    if "*" in text:
        width += max((abs(value) for value in _flat(values) if isinstance(value, int)), default=0)
    return sys.getsizeof(form) + text.count("%") * CHARACTER * (width + ESCAPED * budget.weigh(values).size)


def widest(form: str) -> float:
    """The largest number that a format names."""
    return max((int(digits) if len(digits) < 10 else TOO_LARGE for digits in DIGITS.findall(form)), default=0)


def of_filter(budget: Budget, name: str, value: Any, arguments: Arguments) -> float:
    """What a filter makes of a value."""
    if name in _FILTERS:
        return _FILTERS[name](budget, value, arguments)
    if isinstance(value, str) and name in _METHODS:
        return _METHODS[name](budget, value, arguments)
    return _any(budget, value, arguments)


def of_method(budget: Budget, name: str, value: Any, arguments: Arguments) -> float:
    """What a method of a text or number makes."""
    rule = _METHODS.get(name, _any) if isinstance(value, str) else _any
    return rule(budget, value, arguments)


def _lists(_budget: Budget, value: Any, arguments: Arguments) -> float:
    """The same items, and as many more as a number says."""
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
    """A line for each character, and at each end what is to end a line."""
    size = budget.weigh(value).size
    ends = sum(budget.weigh(argument).size for argument in arguments if isinstance(argument, str))
    return ESCAPED * size * (PIECE + ends)


def _sum(budget: Budget, value: Any, arguments: Arguments) -> float:
    """Lists are put together one by one."""
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
