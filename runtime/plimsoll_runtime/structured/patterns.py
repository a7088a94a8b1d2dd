"""Patterns of JSON Schema, which are ECMA-262's, as llguidance reads them, which is as Rust's regex library does.

In ECMA-262 `\\d` and `\\w` are ASCII, `\\s` is what it calls white space, and `.` is anything but its four line ends.
In Rust the first three are of all scripts, and classes may hold classes and operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.engine.constraint import ConstraintError

_WHITE = r"\t\n\x0B\x0C\r \u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}"
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": _WHITE}
_LINE_ENDS = r"\n\r\u{2028}\u{2029}"
_OPERATORS = "[&~-^"
"""What may mean something within a class in Rust."""

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
    """A pattern of ECMA-262 in Rust's notation. What neither knows is left for llguidance to refuse.

    Raises ConstraintError where it ends within an escape or a class.
    """
    found: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern[at] == "[":
            text, at = _class(pattern, at + 1)
        elif pattern[at] == ".":
            text, at = f"[^{_LINE_ENDS}]", at + 1
        else:
            text, at = _atom(pattern, at)
        found.append(text)
    return "".join(found)


def _class(pattern: str, at: int) -> tuple[str, int]:
    """What stands behind a bracket, and the index after its end."""
    found = "["
    if pattern.startswith("^", at):
        found, at = "[^", at + 1
    while not pattern.startswith("]", at):
        low, at = _atom(pattern, at, within=True)
        if not pattern.startswith("-", at) or pattern.startswith("-]", at):
            found += low
            continue
        high, at = _atom(pattern, at + 1, within=True)
        is_range = not low.startswith("[") and not high.startswith("[")
        found += low + ("-" if is_range else r"\-") + high
    return found + "]", at + 1


def _atom(pattern: str, at: int, *, within: bool = False) -> tuple[str, int]:
    """A character or an escape, which may be a set, and the index after it."""
    if at == len(pattern) or pattern[at:] == "\\":
        raise ConstraintError(f"has the pattern {pattern[:80]!r}, which ends in the middle")
    if pattern[at] != "\\":
        operates = within and pattern[at] in _OPERATORS
        return ("\\" if operates else "") + pattern[at], at + 1
    letter = pattern[at + 1]
    listed = _CLASSES.get(letter.lower())
    if listed is not None:
        return f"[{'^' if letter.isupper() else ''}{listed}]", at + 2
    return r"\x08" if within and letter == "b" else "\\" + letter, at + 2
