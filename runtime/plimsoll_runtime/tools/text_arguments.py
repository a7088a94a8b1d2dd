"""Tool calls whose arguments are written one by one as plain text: their grammar, and their conversion to a JSON
object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.structured.regex_rust import in_rust
from plimsoll_runtime.tools.arguments import ANY, in_json, resolved, types_of
from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import ANY_CHARACTER, ANY_TEXT, SpecialId, escaped, marked, regex, schema, text
from plimsoll_runtime.tools.json_calls import BrokenJson, JsonValue
from plimsoll_runtime.tools.output_parser import Calls
from plimsoll_runtime.tools.stream_reader import WHITE, Ended, NoCall, Page, Reading, before, either, until

_DEFINITIONS = ("$defs", "definitions")
NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id"}
)
"""Keywords of a schema that do not restrict values."""
_OBJECT = NOTES | {"type", "properties", "required", "additionalProperties", *_DEFINITIONS}
_TEXT = NOTES | {"type", "minLength", "maxLength", "pattern", "format", "enum", "const", "anyOf", *_DEFINITIONS}

_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a tool. `value` is its schema, with the definitions that it refers to. `is_text`: the value is
    written as plain text, not as JSON.
    """

    name: str
    value: Mapping[str, Any]
    required: bool
    is_text: bool


def arguments_of(tool: Tool) -> Sequence[Argument]:
    """Return the arguments in a tool's schema, in order, then other required names. Raises ConstraintError if the
    schema restricts the object in a way that a list of arguments cannot enforce.
    """
    root = resolved(tool.parameters, tool.parameters)
    _check(root, _OBJECT, tool.name)
    properties, required = root.get("properties") or {}, root.get("required") or []
    if not isinstance(properties, Mapping) or not _is_list(required, str):
        raise ConstraintError(f"{tool.name}: in its schema, properties must be an object, and required a list of names")
    known = {**properties, **{name: {} for name in required if name not in properties}}
    shared = {key: tool.parameters[key] for key in _DEFINITIONS if key in tool.parameters}
    found = []
    for name, value in known.items():
        if value is False and name not in required:
            continue
        value = {} if value is True else value
        if not isinstance(value, Mapping):
            raise ConstraintError(f"{tool.name}: the schema of {name!r} allows no value")
        given = {**shared, **value} if "$ref" in json.dumps(value) else value
        is_text = types_of(tool, name) == {"string"} or _is_loose(given, given)
        found.append(Argument(name, given, name in required, is_text))
    return found


def _is_loose(value: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Return whether the schema accepts every text, even one that reads as another value (`null`, `3`): strings are
    allowed, and no other allowed type has restrictions.
    """
    value = resolved(value, root)
    branches = value.get("anyOf")
    if isinstance(branches, list) and value.keys() <= NOTES | {"anyOf", *_DEFINITIONS}:
        plain = [isinstance(each, Mapping) and resolved(each, root).keys() <= NOTES | {"type"} for each in branches]
        return all(plain) and any(_is_loose(each, root) for each in branches)
    kinds = value.get("type", "string")
    return value.keys() <= NOTES | {"type", *_DEFINITIONS} and (
        kinds == "string" or (_is_list(kinds, str) and "string" in kinds)
    )


class Texts:
    """Terminals of one grammar for texts that end with a marker.

    A text has no quotes and ends at its end marker, so the grammar excludes the marker from it. All other values are
    JSON, as parsers of such formats expect.
    """

    def __init__(self, special_id: SpecialId) -> None:
        self._special_id = special_id
        self._rules: list[str] = []

    @property
    def rules(self) -> str:
        """The rules of all terminals."""
        return "".join(self._rules)

    def value(self, argument: Argument, end: str, barred: str | None = None) -> str:
        """Return the rule for an argument's value and its end marker. Texts must not contain `barred` (by default the
        end marker). Raises ConstraintError.
        """
        if not argument.is_text:
            return f"{schema(argument.value)} {marked(end, self._special_id)}"
        return self.text(argument, end, barred or end)

    def text(self, argument: Argument, end: str, barred: str) -> str:
        """Return the rule for a text argument and its end marker. Raises ConstraintError."""
        forms = _forms(argument.value, argument.value, argument.name)
        return f"({' | '.join(self._ended(form, end, barred) for form in forms)})"

    def _ended(self, form: _Form, end: str, barred: str) -> str:
        if form.literal is not None:
            if barred in form.literal:
                raise ConstraintError(
                    f"the text {form.literal[:40]!r} contains {barred!r}, the end marker of texts in this tool-call "
                    "format; change the schema"
                )
            return f"{text(form.literal)} {marked(end, self._special_id)}"
        name = f"TEXT_{len(self._rules)}"
        whole = " & ".join(regex(pattern) for pattern in form.patterns)
        if self._special_id(end) is not None:
            self._rules.append(f"{name}: {whole}\n")
            return f"{name} {marked(end, self._special_id)}"
        without = regex(f"{ANY_TEXT}{escaped(barred)}{ANY_TEXT}")
        self._rules.append(f"{name}_IN: {whole} & ~{without}\n{name}: {name}_IN {text(end)}\n")
        return name


@dataclass(frozen=True, slots=True)
class _Form:
    """A literal text, or all texts that match some patterns."""

    literal: str | None
    patterns: tuple[str, ...] = ()


def _forms(value: Mapping[str, Any], root: Mapping[str, Any], where: str) -> Sequence[_Form]:
    """Return the texts that a schema allows."""
    value = resolved(value, root)
    if _is_loose(value, root):
        return [_Form(None, (ANY_TEXT,))]
    _check(value, _TEXT, where)
    if "anyOf" in value:
        _check(value, NOTES | {"type", "anyOf", *_DEFINITIONS}, where)
        branches = _typed(value, "anyOf", where, lambda found: _is_list(found, Mapping))
        return [form for branch in branches for form in _forms(branch, root, where)]
    if "const" in value or "enum" in value:
        _check(value, NOTES | {"type", "const", "enum", *_DEFINITIONS}, where)
        options = [value["const"]] if "const" in value else _typed(value, "enum", where, lambda v: isinstance(v, list))
        texts = [_Form(option) for option in options if isinstance(option, str)]
        if not texts:
            raise ConstraintError(f"{where}: its const or enum has no string; add one")
        return texts
    return [_Form(None, tuple(_patterns(value, where)))]


def _patterns(value: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield patterns that the whole text must match."""
    least, most = (_typed(value, key, where, _is_length) for key in ("minLength", "maxLength"))
    yield f"{ANY_CHARACTER}{{{least or 0},{'' if most is None else most}}}"
    pattern, form = (_typed(value, key, where, lambda found: isinstance(found, str)) for key in ("pattern", "format"))
    if pattern is not None:
        yield _anywhere(in_rust(pattern), where)
    if form is not None:
        if form not in _FORMATS:
            raise ConstraintError(f"{where}: the format {form!r} cannot be enforced in this tool-call format")
        yield _FORMATS[form]


def _typed(value: Mapping[str, Any], key: str, where: str, is_one: Callable[[Any], bool]) -> Any:
    """Return the value of a keyword, or None. Raises ConstraintError for an invalid value."""
    if key in value and not is_one(value[key]):
        raise ConstraintError(f"{where}: the value of {key!r} is not valid in JSON Schema")
    return value.get(key)


def _is_length(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0


def _is_list(found: Any, kind: type) -> bool:
    return isinstance(found, list) and all(isinstance(each, kind) for each in found)


def _anywhere(pattern: str, where: str) -> str:
    """Convert a pattern that may match anywhere into one that matches the whole text."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[begins : len(pattern) - ends]
    if _has_anchor(inner) or ((begins or ends) and _is_choice(inner)):
        raise ConstraintError(f"{where}: the pattern {pattern[:40]!r} cannot be enforced in this tool-call format")
    return f"{'' if begins else ANY_TEXT}({inner}){'' if ends else ANY_TEXT}"


def _has_anchor(pattern: str) -> bool:
    """Return whether there is an anchor outside of classes."""
    return any(char in "^$" for char, depth, within in _characters(pattern) if not within)


def _is_choice(pattern: str) -> bool:
    """Return whether the pattern has alternatives at its top level, each with its own anchors."""
    return any(char == "|" and depth == 0 for char, depth, within in _characters(pattern) if not within)


def _characters(pattern: str) -> Sequence[tuple[str, int, bool]]:
    """Return each unescaped character with its group depth, and whether it is within a class."""
    found, depth, classes, at = [], 0, 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        found.append((char, depth, classes > 0))
        classes += (char == "[") - (char == "]" and classes > 0)
        if not classes:
            depth += (char == "(") - (char == ")")
        at += 1
    return found


def _check(value: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(value.keys() - known)
    if unknown:
        raise ConstraintError(f"{where}: {unknown[0]!r} cannot be enforced in this tool-call format")


class Fields:
    """The arguments of one call so far."""

    def __init__(self, calls: Calls, tool: Tool) -> None:
        self._calls = calls
        self._tool = tool
        self._seen: set[str] = set()

    def begin(self) -> Reading[None]:
        """Start the call and its object."""
        yield self._calls.begin(self._tool)
        yield self._calls.arguments("{")

    def field(self, page: Page, name: str, *ends: str) -> Reading[None]:
        """Read an argument up to and including the first of `ends`. Strings are returned as they arrive, other values
        when they are complete. Raises NoCall for a repeated name, and Ended if the output ends within the text.
        """
        yield from self._key(name)
        types = types_of(self._tool, name)
        if types == {"string"}:
            yield from string(page, self._calls, *ends)
        else:
            yield self._calls.arguments(in_json((yield from _ended(page, ends)), types))

    def literal(self, name: str, text: str) -> Reading[None]:
        """Add an argument written as a JSON or Python literal; other text is a string."""
        yield from self._key(name)
        yield self._calls.arguments(in_json(text, ANY))

    def end(self) -> Reading[None]:
        """Close the object."""
        yield self._calls.arguments("}")

    def _key(self, name: str) -> Reading[None]:
        if not name or name in self._seen:
            raise NoCall
        lead = ", " if self._seen else ""
        self._seen.add(name)
        yield self._calls.arguments(f"{lead}{json.dumps(name, ensure_ascii=False)}: ")


def string(page: Page, calls: Calls, *ends: str) -> Reading[None]:
    """Read a text up to and including the first of its ends, and yield it as a JSON string in pieces."""
    yield calls.arguments('"')
    while piece := (yield from before(page, *ends, cut=True)):
        yield calls.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])
    yield from either(page, *ends)
    yield calls.arguments('"')


def _ended(page: Page, ends: tuple[str, ...]) -> Reading[str]:
    """Read a value up to and including its end. An apparent end within incomplete JSON belongs to the JSON, unless the
    JSON is invalid or never completes.
    """
    first, end = yield from until(page, *ends)
    if first.lstrip(WHITE)[:1] not in ("[", "{", '"'):
        return first
    value, found, behind = JsonValue(), first, page.at - page.kept
    try:
        value.take(first, 0)
        while not value.done:
            value.take(end, 0)
            more, after = yield from until(page, *ends)
            found, end = found + end + more, after
            value.take(more, 0)
    except (BrokenJson, Ended):
        page.at = page.kept + behind
        return first
    return found
