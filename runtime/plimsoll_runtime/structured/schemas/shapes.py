"""What JSON Schema lets stand behind each keyword."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from plimsoll_runtime.engine.constraint import ConstraintError
from plimsoll_runtime.structured.schemas.kinds import OF_TYPE, is_count, is_number
from plimsoll_runtime.structured.schemas.place import Place


class Shape(NamedTuple):
    """`wanted` says it in words."""

    fits: Callable[[Any], bool]
    wanted: str


def is_schema(value: Any) -> bool:
    """Whether a schema may look like it."""
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
_COUNT = Shape(is_count, "must be a whole number from 0 on")
_SCHEMA = Shape(is_schema, "must be a schema: an object, true or false")
_SOME = Shape(lambda value: _schemas(value) and bool(value), "must be a list of one schema or more")
_LIST = Shape(_schemas, "must be a list of schemas")
_MAP = Shape(_by_name(is_schema), "must be an object whose values are schemas")
_NAMES = Shape(_texts, "must be a list of names")
_VALUES = Shape(lambda value: isinstance(value, list) and bool(value), "must be a list of one value or more")

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
    """Raises ConstraintError for a keyword whose value JSON Schema does not know."""
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
