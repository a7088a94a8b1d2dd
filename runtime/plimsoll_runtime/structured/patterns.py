"""Patterns of JSON Schema, which are ECMA-262's, as llguidance reads them, which is as Rust's regex library does.

In ECMA-262 `\\d` and `\\w` are ASCII, `\\s` is what it calls white space, and `.` is anything but its four line ends.
In Rust the first three are of all scripts, and classes may hold classes and operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.engine.constraint import ConstraintError
from plimsoll_runtime.structured.regexes.parser import PatternError, parse
from plimsoll_runtime.structured.regexes.rust import unsupported, written

_MAPS = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"const", "enum", "default", "examples"})


def with_patterns(schema: Any) -> Any:
    """A schema whose patterns mean to llguidance what they mean in JSON Schema."""
    if isinstance(schema, list):
        return [with_patterns(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _member(key, value) for key, value in schema.items()}


def _member(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key == "pattern" and isinstance(value, str):
        return in_rust(value)
    if key == "patternProperties" and isinstance(value, Mapping):
        return {in_rust(pattern): with_patterns(each) for pattern, each in value.items()}
    if key in _MAPS and isinstance(value, Mapping):
        return {name: with_patterns(each) for name, each in value.items()}
    return with_patterns(value)


def in_rust(pattern: str) -> str:
    """A pattern of ECMA-262 in Rust's notation. Raises ConstraintError for what is none, or cannot be enforced."""
    try:
        node = parse(pattern)
    except PatternError as error:
        raise ConstraintError(f"has the pattern {pattern[:80]!r}, in which {error}") from error
    problem = unsupported(node)
    if problem is not None:
        raise ConstraintError(f"has the pattern {pattern[:80]!r}, in which {problem} cannot be enforced")
    return written(node)
