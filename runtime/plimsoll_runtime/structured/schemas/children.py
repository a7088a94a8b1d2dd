"""The schemas that stand in a schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll_runtime.structured.schemas.place import Place
from plimsoll_runtime.structured.schemas.shapes import is_schema

_ONE = frozenset({
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
})  # fmt: skip
_LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_MAPS = frozenset({"dependencies", "dependentSchemas", "patternProperties", "properties"})
DEFINITIONS = frozenset({"$defs", "definitions"})


def children(
    schema: Mapping[str, Any], place: Place, *, definitions: bool
) -> Iterator[tuple[Mapping[str, Any] | bool, Place]]:
    """Each with its place, in their order; `definitions`: also those that count only where something refers to them."""
    for key, value in schema.items():
        if key in _ONE and is_schema(value):
            yield value, place.at(key)
        elif key in _LISTS and isinstance(value, list):
            for index, each in enumerate(value):
                if is_schema(each):
                    yield each, place.at(key, index)
        elif (key in _MAPS or (definitions and key in DEFINITIONS)) and isinstance(value, Mapping):
            for name, each in value.items():
                if is_schema(each):
                    yield each, place.at(key, name)
