"""Tool calls whose arguments are written one by one as plain text: their grammar, and the reader that makes an object
of them.
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
"""What a schema may say that no value has to obey."""
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
    """One that a call may have. `value` is its schema, with the definitions that it refers to."""

    name: str
    value: Mapping[str, Any]
    required: bool
    is_text: bool


def arguments_of(tool: Tool) -> Sequence[Argument]:
    """Those that a tool's schema knows, in its order, then others that it requires. Raises ConstraintError for what
    the schema asks of them all together and a list of arguments cannot be kept to."""
    root = resolved(tool.parameters, tool.parameters)
    _check(root, _OBJECT, tool.name)
    properties, required = root.get("properties") or {}, root.get("required") or []
    if not isinstance(properties, Mapping) or not _is_list(required, str):
        raise ConstraintError(
            f"{tool.name}: its schema's properties are no object, or what is required no list of names"
        )
    known = {**properties, **{name: {} for name in required if name not in properties}}
    shared = {key: tool.parameters[key] for key in _DEFINITIONS if key in tool.parameters}
    found = []
    for name, value in known.items():
        if value is False and name not in required:
            continue
        value = {} if value is True else value
        if not isinstance(value, Mapping):
            raise ConstraintError(f"{tool.name}: {name!r} has a schema that no value has")
        given = {**shared, **value} if "$ref" in json.dumps(value) else value
        is_text = types_of(tool, name) == {"string"} or _is_loose(given, given)
        found.append(Argument(name, given, name in required, is_text))
    return found


def _is_loose(value: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Whether every text is of a schema, be it read as a text or as another value (`null`, `3`): texts are allowed, and
    nothing is asked of the other types that are."""
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
    """The terminals of one grammar: texts that end with a marker.

    A text has no quotes, so it ends where its end marker is: the grammar keeps the marker out of it. Every other value
    is JSON, as readers of such formats expect.
    """

    def __init__(self, special_id: SpecialId) -> None:
        self._special_id = special_id
        self._rules: list[str] = []

    @property
    def rules(self) -> str:
        """All of them."""
        return "".join(self._rules)

    def value(self, argument: Argument, end: str, barred: str | None = None) -> str:
        """An argument's value and what ends it; no text has in it what is `barred`, the end itself where nothing is
        said. Raises ConstraintError."""
        if not argument.is_text:
            return f"{schema(argument.value)} {marked(end, self._special_id)}"
        return self.text(argument, end, barred or end)

    def text(self, argument: Argument, end: str, barred: str) -> str:
        """The same for one that is a text."""
        forms = _forms(argument.value, argument.value, argument.name)
        return f"({' | '.join(self._ended(form, end, barred) for form in forms)})"

    def _ended(self, form: _Form, end: str, barred: str) -> str:
        if form.literal is not None:
            if barred in form.literal:
                raise ConstraintError(f"the text {form.literal[:40]!r} holds what ends texts in calls of this format")
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
    """A text of its own, or all that match some patterns."""

    literal: str | None
    patterns: tuple[str, ...] = ()


def _forms(value: Mapping[str, Any], root: Mapping[str, Any], where: str) -> Sequence[_Form]:
    """What a schema of texts allows."""
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
            raise ConstraintError(f"{where}: no text satisfies it")
        return texts
    return [_Form(None, tuple(_patterns(value, where)))]


def _patterns(value: Mapping[str, Any], where: str) -> Iterator[str]:
    """What a text has to match, all of it."""
    least, most = (_typed(value, key, where, _is_length) for key in ("minLength", "maxLength"))
    yield f"{ANY_CHARACTER}{{{least or 0},{'' if most is None else most}}}"
    pattern, form = (_typed(value, key, where, lambda found: isinstance(found, str)) for key in ("pattern", "format"))
    if pattern is not None:
        yield _anywhere(in_rust(pattern), where)
    if form is not None:
        if form not in _FORMATS:
            raise ConstraintError(f"{where}: the format {form!r} cannot be enforced in calls of this format")
        yield _FORMATS[form]


def _typed(value: Mapping[str, Any], key: str, where: str, is_one: Callable[[Any], bool]) -> Any:
    """What a schema has under a key; None where it has nothing. Raises ConstraintError for what cannot stand there."""
    if key in value and not is_one(value[key]):
        raise ConstraintError(f"{where}: its {key!r} is none of JSON Schema's")
    return value.get(key)


def _is_length(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0


def _is_list(found: Any, kind: type) -> bool:
    return isinstance(found, list) and all(isinstance(each, kind) for each in found)


def _anywhere(pattern: str, where: str) -> str:
    """A pattern that is found in a text, as one of all the text."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[begins : len(pattern) - ends]
    if _has_anchor(inner) or ((begins or ends) and _is_choice(inner)):
        raise ConstraintError(f"{where}: the pattern {pattern[:40]!r} cannot be enforced in calls of this format")
    return f"{'' if begins else ANY_TEXT}({inner}){'' if ends else ANY_TEXT}"


def _has_anchor(pattern: str) -> bool:
    """Whether an anchor stands outside of classes."""
    return any(char in "^$" for char, depth, within in _characters(pattern) if not within)


def _is_choice(pattern: str) -> bool:
    """Whether it is a choice between patterns, each of which has anchors of its own."""
    return any(char == "|" and depth == 0 for char, depth, within in _characters(pattern) if not within)


def _characters(pattern: str) -> Sequence[tuple[str, int, bool]]:
    """Each that is not escaped, with how many groups are around it and whether it is within a class."""
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
        raise ConstraintError(f"{where}: {unknown[0]!r} cannot be enforced in calls of this format")


class Fields:
    """The arguments of one call, so far."""

    def __init__(self, calls: Calls, tool: Tool) -> None:
        self._calls = calls
        self._tool = tool
        self._seen: set[str] = set()

    def begin(self) -> Reading[None]:
        """The call begins, and its object."""
        yield self._calls.begin(self._tool)
        yield self._calls.arguments("{")

    def field(self, page: Page, name: str, *ends: str) -> Reading[None]:
        """One argument, whose text goes up to the first of some texts, which are read. A string's text is given as it
        comes, a value of another kind when it is whole. Raises NoCall for a name that was there
        before, and Ended where the answer ends within the text."""
        yield from self._key(name)
        types = types_of(self._tool, name)
        if types == {"string"}:
            yield from string(page, self._calls, *ends)
        else:
            yield self._calls.arguments(in_json((yield from _ended(page, ends)), types))

    def literal(self, name: str, text: str) -> Reading[None]:
        """One argument whose value says its type itself, as JSON or Python writes it; other text is a string."""
        yield from self._key(name)
        yield self._calls.arguments(in_json(text, ANY))

    def end(self) -> Reading[None]:
        """The object is whole."""
        yield self._calls.arguments("}")

    def _key(self, name: str) -> Reading[None]:
        if not name or name in self._seen:
            raise NoCall
        lead = ", " if self._seen else ""
        self._seen.add(name)
        yield self._calls.arguments(f"{lead}{json.dumps(name, ensure_ascii=False)}: ")


def string(page: Page, calls: Calls, *ends: str) -> Reading[None]:
    """A text up to the first of its ends, which is read, as a JSON string that is given as it comes."""
    yield calls.arguments('"')
    while piece := (yield from before(page, *ends, cut=True)):
        yield calls.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])
    yield from either(page, *ends)
    yield calls.arguments('"')


def _ended(page: Page, ends: tuple[str, ...]) -> Reading[str]:
    """A value up to its end, which is read. What looks like an end within JSON that is not whole yet belongs to the
    JSON, unless that is broken or never becomes whole: then the value ends there after all."""
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
