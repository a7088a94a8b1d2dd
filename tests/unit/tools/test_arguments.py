"""Plain text becomes JSON of a type that the schema allows, else a string."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plimsoll_runtime.tools.arguments import in_json, types_of
from plimsoll_runtime.tools.base import Tool


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "12", "12"),
        ({"type": "string"}, " true\n", " true\n"),
        ({"type": "integer"}, "12", 12),
        ({"type": "integer"}, " 12 ", 12),
        ({"type": "number"}, "12", 12),
        ({"type": "number"}, "-1.5e3", -1500.0),
        ({"type": "integer"}, "1.5", "1.5"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "array"}, "['a', None]", ["a", None]),
        ({"type": "array"}, '["a", null]', ["a", None]),
        ({"type": "object"}, '{"a": {"b": [1]}}', {"a": {"b": [1]}}),
        ({"type": "object"}, "{1, 2}", "{1, 2}"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "nil", "nil"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": False}, "false", False),
        ({"$ref": "#/$defs/count"}, "4", 4),
        ({"$ref": "#/$defs/loop"}, "4", 4),
        ({"$ref": "#/$defs/none"}, "4", 4),
        ({"type": "number"}, "Infinity", "Infinity"),
        ({"type": "number"}, "1e999", "1e999"),
        ({}, "word", "word"),
        ({}, "3", 3),
        (True, "", ""),
    ],
    ids=str,
)
def test_values(schema: Any, text: str, value: object) -> None:
    definitions = {"count": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}
    tool = Tool("f", None, {"properties": {"a": schema}, "$defs": definitions})
    found = json.loads(in_json(text, types_of(tool, "a")))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("parameters", [{}, {"properties": 3}, {"properties": {"b": {"type": "string"}}}])
def test_a_parameter_that_no_schema_has_may_be_anything(parameters: dict[str, Any]) -> None:
    types = types_of(Tool("f", None, parameters), "a")
    assert in_json("[1]", types) == "[1]"
    assert in_json("[1", types) == '"[1"'


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "'\\ud800", "b'x'", "1_0j"])
def test_whatever_stands_there_is_kept(text: str) -> None:
    assert json.loads(in_json(text, frozenset({"object"}))) == text
