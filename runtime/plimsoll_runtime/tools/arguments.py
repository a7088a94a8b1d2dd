"""Arguments of tool calls as text: parses complete and partial ones, and converts plain text to JSON by its schema."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from plimsoll_runtime.tools.base import Tool


def value_of(text: str) -> Any:
    """Return the JSON object or list in a text, {} for an empty text or null, and any other text unchanged.

    A text whose value has an unpaired surrogate is also returned unchanged, because no tokenizer can encode that.
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
    """Return whether a text is a complete JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def beginning_of(text: str) -> dict[str, Any] | None:
    """Return the readable fields of an object that may be cut off, or None if the text does not begin an object."""
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
    """Return the types that a parameter's schema allows; all types if it specifies none."""
    properties = tool.parameters.get("properties")
    found = properties.get(parameter) if isinstance(properties, Mapping) else None
    return _types(found, tool.parameters, _MOST_REFERENCES)


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace a schema's reference by its target, merged with the keywords next to the reference. Unresolvable
    references stay.
    """
    for _ in range(_MOST_REFERENCES):
        reference = schema.get("$ref")
        found = _at(root, reference) if isinstance(reference, str) and reference.startswith("#/") else None
        if not isinstance(found, Mapping):
            break
        schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def in_json(text: str, types: frozenset[str]) -> str:
    """Return a value as JSON: the text's value if it has an allowed type, else the text as a string."""
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
