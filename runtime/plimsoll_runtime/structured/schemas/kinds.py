"""What JSON values are."""

from __future__ import annotations

import json
import math
from typing import Any

_NUMERIC = frozenset({"integer", "fraction"})
OF_TYPE = {
    "null": frozenset({"null"}),
    "boolean": frozenset({"boolean"}),
    "integer": frozenset({"integer"}),
    "number": _NUMERIC,
    "string": frozenset({"string"}),
    "array": frozenset({"array"}),
    "object": frozenset({"object"}),
}
"""The kinds of values that JSON Schema's types have. `fraction` is a number that is no integer."""
ALL = frozenset().union(*OF_TYPE.values())


def kinds_of(types: Any) -> frozenset[str]:
    """The kinds of values that a `type` allows; all kinds if it is None."""
    if types is None:
        return ALL
    return frozenset().union(*(OF_TYPE[name] for name in ([types] if isinstance(types, str) else types)))


def types_of(kinds: frozenset[str]) -> list[str] | None:
    """The types that have these kinds together; None where no types have."""
    if "fraction" in kinds and "integer" not in kinds:
        return None
    named = [name for name in OF_TYPE if OF_TYPE[name] <= kinds]
    return [name for name in named if name != "integer" or "number" not in named]


def kind_of(value: Any) -> str:
    """That of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    return {float: "fraction", str: "string", list: "array"}.get(type(value), "object")


def canonical(value: Any) -> str:
    """The same text for values that JSON Schema calls equal."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def is_number(value: Any) -> bool:
    """Whether it is one that JSON has."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value)
    )


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 on."""
    return is_number(value) and value >= 0 and (isinstance(value, int) or value.is_integer())


def is_exact(value: Any) -> bool:
    """Whether a grammar keeps to it: no number in it is one that a double rounds, or has more than 18 digits."""
    if isinstance(value, list):
        return all(map(is_exact, value))
    if isinstance(value, dict):
        return all(map(is_exact, value.values()))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return abs(value) <= 10**18 and float(value) == value
