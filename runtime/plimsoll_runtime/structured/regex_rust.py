"""Writes regular expressions in the notation of Rust's regex library, which llguidance uses, and names constructs that
it cannot enforce.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.structured.regex_parser import (
    Anchor,
    Chars,
    Choice,
    Foreign,
    Group,
    Look,
    Node,
    PatternError,
    Range,
    Repeat,
    Sequence,
    parse,
)

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_SIGNS = frozenset(r"\.+*?()|[]{}^$#&-~")
r"""Characters with a meaning in Rust, within a class or outside. `\\<` would match the start of a word."""


def written(node: Node) -> str:
    """Return a supported node in Rust's notation. Raises ValueError for other nodes."""
    match node:
        case Chars():
            return _chars(node)
        case Sequence(parts):
            return "".join(f"(?:{written(part)})" if isinstance(part, Choice) else written(part) for part in parts)
        case Choice(branches):
            return "|".join(map(written, branches))
        case Repeat(inner, least, most):
            return _atom(inner) + _bounds(least, most)
        case Group(inner, flags):
            return f"(?{flags}:{written(inner)})" if flags else f"({written(inner)})"
        case Anchor(sign):
            return sign
        case Look() | Foreign():
            raise ValueError(f"no grammar can enforce {unsupported(node)}")


def unsupported(node: Node) -> str | None:
    """Return the name of the first construct that no grammar can enforce, or None."""
    return _judged(node).problem


class _Judgement(NamedTuple):
    """The first problem of a node, and whether it contains `^` (`begins`) or `$` (`ends`)."""

    problem: str | None = None
    begins: bool = False
    ends: bool = False


def _judged(node: Node) -> _Judgement:
    match node:
        case Foreign(what):
            return _Judgement(what)
        case Look():
            return _Judgement("look-ahead")
        case Anchor(sign):
            return _Judgement(None, sign == "^", sign == "$")
        case Sequence(parts):
            return _in_a_row([_judged(part) for part in parts])
        case Choice(branches):
            return _any(map(_judged, branches))
        case Repeat(inner):
            found = _judged(inner)
            anchored = "a repeated anchor" if found.begins or found.ends else None
            return found._replace(problem=found.problem or anchored)
        case Group(inner):
            return _judged(inner)
        case Chars():
            return _Judgement()


def _in_a_row(parts: list[_Judgement]) -> _Judgement:
    late = "'^' after other characters" if any(part.begins for part in parts[1:]) else None
    early = "'$' before other characters" if any(part.ends for part in parts[:-1]) else None
    found = _any(parts)
    return found._replace(problem=found.problem or late or early)


def _any(parts: Iterable[_Judgement]) -> _Judgement:
    known = list(parts)
    problem = next((part.problem for part in known if part.problem is not None), None)
    return _Judgement(problem, any(part.begins for part in known), any(part.ends for part in known))


def _atom(node: Node) -> str:
    return written(node) if isinstance(node, Chars | Group) else f"(?:{written(node)})"


def _bounds(least: int, most: int | None) -> str:
    sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if sign is not None:
        return sign
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"


def _chars(chars: Chars) -> str:
    inside = "".join(map(_range, _without_surrogates(chars.ranges)))
    inside += "".join(chars.properties)
    if not inside:  # only surrogates, which no text contains
        return rf"[\u{{0}}-\u{{{_LAST:X}}}]" if chars.negated else rf"[^\u{{0}}-\u{{{_LAST:X}}}]"
    ranges = chars.ranges
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and not chars.properties and not chars.negated:
        return inside
    return f"[{'^' if chars.negated else ''}{inside}]"


def _range(given: Range) -> str:
    low, high = map(_char, given)
    return low if low == high else f"{low}-{high}"


def _char(code: int) -> str:
    char = chr(code)
    if char in _SIGNS:
        return "\\" + char
    return char if char.isascii() and char.isprintable() else f"\\u{{{code:X}}}"


def _without_surrogates(ranges: tuple[Range, ...]) -> Iterator[Range]:
    first, last = _SURROGATES
    for low, high in ranges:
        if high < first or low > last:
            yield low, high
            continue
        if low < first:
            yield low, first - 1
        if high > last:
            yield last + 1, high


_MAPS = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"const", "enum", "default", "examples"})


def with_patterns(schema: Any) -> Any:
    r"""Return a schema with its patterns converted from ECMA-262 to Rust's notation.

    JSON Schema uses patterns of ECMA-262, llguidance those of Rust's library. In ECMA-262, `\d` and `\w` are ASCII,
    `\s` is its own set of white space, and `.` is anything but four line ends. In Rust, the first three cover all
    scripts, and classes may contain classes and operators.
    """
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
    """Return an ECMA-262 pattern in Rust's notation. Raises ConstraintError if it is malformed or cannot be
    enforced.
    """
    try:
        node = parse(pattern)
    except PatternError as error:
        raise ConstraintError(f"has the pattern {pattern[:80]!r}, in which {error}") from error
    problem = unsupported(node)
    if problem is not None:
        raise ConstraintError(f"has the pattern {pattern[:80]!r}, in which {problem} cannot be enforced")
    return written(node)


_BEGIN, _END = Anchor("^"), Anchor("$")
_MOST = 16


def apart(node: Node) -> list[Node]:
    """Split `^(?=A)(?!B)C` into patterns that a text must all match: `^A`, one for texts that do not begin with B, and
    `^C`. Return any other pattern alone, unchanged.
    """
    match node:
        case Sequence((Anchor("^"), *rest)):
            looks = []
            while rest and isinstance(rest[0], Look):
                looks.append(rest.pop(0))
            found = [_as_pattern(look) for look in looks if isinstance(look, Look)]
            known = [each for each in found if each is not None]
            if looks and len(known) == len(found):
                return [*known, Sequence((_BEGIN, *rest))]
    return [node]


def _as_pattern(look: Look) -> Node | None:
    """Return a pattern without look-ahead that matches the same texts, or None."""
    parts = list(look.inner.parts) if isinstance(look.inner, Sequence) else [look.inner]
    if parts and parts[0] == _BEGIN:
        parts = parts[1:]
    if not look.negative:
        return Sequence((_BEGIN, Group(Sequence(tuple(parts)))))
    match parts:
        case [Repeat(Chars() as chars, 0, None), Anchor("$")]:
            return _other(chars)
        case _ if len(parts) <= _MOST and all(isinstance(part, Chars) for part in parts):
            return Sequence((_BEGIN, _not_begun([part for part in parts if isinstance(part, Chars)])))
    return None


def _other(chars: Chars) -> Chars:
    return Chars(chars.ranges, chars.properties, not chars.negated)


def _not_begun(chars: list[Chars]) -> Node:
    """Return a pattern for texts that do not begin with these characters."""
    if not chars:
        return Chars(())  # every text begins with the empty text
    found: Node = Group(Choice((_END, _other(chars[-1]))))
    for char in reversed(chars[:-1]):
        found = Group(Choice((_END, _other(char), Sequence((char, found)))))
    return found
