"""Arguments of tool calls as text: reads them, complete or cut, and makes JSON of plain text by its schema."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from plimsoll_runtime.tools.base import Tool


def value_of(text: str) -> Any:
    """The JSON object or list that a text is, an empty object for an empty text or null; any other text as it is.

    A text is also left as it is if its value holds half of a surrogate pair: no tokenizer can encode that.
    """
    try:
        value = json.loads(text or "null")
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    if value is None:
        return {}
    return value if isinstance(value, dict | list) else text


def is_whole(text: str) -> bool:
    """Whether arguments are a JSON object, to its end."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def beginning_of(text: str) -> dict[str, Any] | None:
    """The fields that can be read of an object that may be cut off; None for a text that begins no object."""
    try:
        found = from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


_TYPES: tuple[tuple[str, type | tuple[type, ...]], ...] = (
    ("boolean", bool),
    ("integer", int),
    ("number", (int, float)),
    ("string", str),
    ("array", list),
    ("object", dict),
    ("null", type(None)),
)
ANY = frozenset(name for name, _ in _TYPES)
"""All types."""

_MOST_REFERENCES = 8


def types_of(tool: Tool, parameter: str) -> frozenset[str]:
    """The types that a parameter's schema allows; all where it says nothing of them."""
    properties = tool.parameters.get("properties")
    found = properties.get(parameter) if isinstance(properties, Mapping) else None
    return _types(found, tool.parameters, _MOST_REFERENCES)


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema in the place of a reference to it, with what stands beside the reference. One that leads nowhere is
    left there."""
    for _ in range(_MOST_REFERENCES):
        reference = schema.get("$ref")
        found = _at(root, reference) if isinstance(reference, str) and reference.startswith("#/") else None
        if not isinstance(found, Mapping):
            break
        schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def in_json(text: str, types: frozenset[str]) -> str:
    """A value's JSON: what the text is, where that is of a type that is allowed, else a string of it."""
    for value in _readings(text.strip()):
        if _type(value) & types:
            return json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def _readings(text: str) -> list[Any]:
    found = []
    for reader in (_strict, ast.literal_eval):
        try:
            value = reader(text)
            json.dumps(value, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        found.append(value)
    return found


def _strict(text: str) -> Any:
    return json.loads(text)


def _type(value: Any) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset({"boolean"})
    return frozenset(name for name, kind in _TYPES if isinstance(value, kind))


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or not depth:
        return ANY
    if isinstance(given := schema.get("type"), str):
        return frozenset({given}) & ANY or ANY
    if isinstance(given, list):
        return frozenset(name for name in given if isinstance(name, str)) & ANY or ANY
    if "const" in schema:
        return _type(schema["const"])
    if isinstance(options := schema.get("enum"), list) and options:
        return frozenset().union(*map(_type, options))
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list) and branches:
            return frozenset().union(*(_types(branch, root, depth - 1) for branch in branches))
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#/"):
        return _types(_at(root, reference), root, depth - 1)
    return ANY


def _at(root: Mapping[str, Any], reference: str) -> Any:
    found: Any = root
    for step in reference[2:].split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
