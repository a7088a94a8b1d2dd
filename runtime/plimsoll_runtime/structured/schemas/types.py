"""Types of JSON values, and the valid values of JSON Schema keywords."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.structured.schemas.problems import Place

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
"""Kinds of values for each JSON Schema type. `fraction` is a number that is not an integer."""
ALL = frozenset().union(*OF_TYPE.values())


def kinds_of(types: Any) -> frozenset[str]:
    """Return the kinds of values that a `type` allows; all kinds for None."""
    if types is None:
        return ALL
    return frozenset().union(*(OF_TYPE[name] for name in ([types] if isinstance(types, str) else types)))


def types_of(kinds: frozenset[str]) -> list[str] | None:
    """Return the types that together have exactly these kinds, or None."""
    if "fraction" in kinds and "integer" not in kinds:
        return None
    named = [name for name in OF_TYPE if OF_TYPE[name] <= kinds]
    return [name for name in named if name != "integer" or "number" not in named]


def kind_of(value: Any) -> str:
    """Return the kind of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    return {float: "fraction", str: "string", list: "array"}.get(type(value), "object")


def canonical(value: Any) -> str:
    """Return a text that is the same for values that JSON Schema calls equal."""
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
    """Return whether the value is a JSON number."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value)
    )


def is_count(value: Any) -> bool:
    """Return whether the value is an integer of at least 0."""
    return is_number(value) and value >= 0 and (isinstance(value, int) or value.is_integer())


def is_exact(value: Any) -> bool:
    """Return whether a grammar can enforce the value exactly: no number in it is rounded by a double or above
    10**18.
    """
    if isinstance(value, list):
        return all(map(is_exact, value))
    if isinstance(value, dict):
        return all(map(is_exact, value.values()))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return abs(value) <= 10**18 and float(value) == value


class Shape(NamedTuple):
    """A check of keyword values; `wanted` describes valid values."""

    fits: Callable[[Any], bool]
    wanted: str


def is_schema(value: Any) -> bool:
    """Return whether the value has the type of a schema (object or boolean)."""
    return isinstance(value, Mapping | bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_type(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list) and bool(names) and all(isinstance(n, str) and n in OF_TYPE for n in names)


def _schemas(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_schema, value))


def _by_name(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Mapping) and all(map(fits, value.values()))


_TEXT = Shape(_is_text, "must be a text")
_NUMBER = Shape(is_number, "must be a number")
_BOUND = Shape(lambda value: is_number(value) or isinstance(value, bool), "must be a number")
_COUNT = Shape(is_count, "must be an integer of at least 0")
_SCHEMA = Shape(is_schema, "must be a schema: an object, true or false")
_SOME = Shape(lambda value: _schemas(value) and bool(value), "must be a list of at least one schema")
_LIST = Shape(_schemas, "must be a list of schemas")
_MAP = Shape(_by_name(is_schema), "must be an object whose values are schemas")
_NAMES = Shape(_texts, "must be a list of names")
_VALUES = Shape(lambda value: isinstance(value, list) and bool(value), "must be a list of at least one value")

SHAPES: Mapping[str, Shape] = {
    "type": Shape(_is_type, f"must be one of {', '.join(OF_TYPE)}, or a list of them"),
    "enum": _VALUES,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _BOUND,
    "exclusiveMaximum": _BOUND,
    "multipleOf": Shape(lambda value: is_number(value) and value != 0, "must be a number other than 0"),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(("minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("pattern", "format", "$ref", "$dynamicRef", "$recursiveRef"), _TEXT),
    "uniqueItems": Shape(lambda value: isinstance(value, bool), "must be true or false"),
    "required": _NAMES,
    "dependentRequired": Shape(_by_name(_texts), "must be an object whose values are lists of names"),
    "dependencies": Shape(
        _by_name(lambda value: is_schema(value) or _texts(value)),
        "must be an object whose values are schemas or lists of names",
    ),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _MAP),
    **dict.fromkeys(("additionalProperties", "propertyNames", "unevaluatedProperties"), _SCHEMA),
    "items": Shape(lambda value: is_schema(value) or _schemas(value), "must be a schema, or a list of them"),
    "prefixItems": _LIST,
    **dict.fromkeys(("additionalItems", "contains", "unevaluatedItems"), _SCHEMA),
    "allOf": _LIST,
    "anyOf": _SOME,
    "oneOf": _SOME,
    **dict.fromkeys(("not", "if", "then", "else"), _SCHEMA),
}


def check_shapes(schema: Mapping[str, Any], place: Place) -> None:
    """Raise ConstraintError for a keyword with an invalid value."""
    for keyword, value in schema.items():
        shape = SHAPES.get(keyword)
        if shape is not None and not shape.fits(value):
            raise ConstraintError(f"at '{place.at(keyword).shown}': {shape.wanted}, not {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}" if any(isinstance(e, list | Mapping) for e in value) else repr(value)[:80]
    return repr(value)[:80]
