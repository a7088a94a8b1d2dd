"""Tool calls as JSON objects: an incremental JSON scanner, and the formats that use it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import OBJECT, OBJECT_OR_LIST, SpecialId, Wrapping, named, wrapped
from plimsoll_runtime.tools.output_parser import CallFormat, Calls, Style, listed
from plimsoll_runtime.tools.stream_reader import NoCall, Page, Reading, blanks, expect, peek

_WHITE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = {
    "-": {"0": "0", "d": "n"},
    "0": {".": ".", "e": "e"},
    "n": {"0": "n", "d": "n", ".": ".", "e": "e"},
    ".": {"0": "f", "d": "f"},
    "f": {"0": "f", "d": "f", "e": "e"},
    "e": {"+": "s", "-": "s", "0": "x", "d": "x"},
    "s": {"0": "x", "d": "x"},
    "x": {"0": "x", "d": "x"},
}
_WHOLE_NUMBER = {"0", "n", "f", "x"}
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}


class BrokenJson(Exception):
    """The text is not JSON. `at` is the index of the first invalid character."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class JsonValue:
    """Scanner of one JSON value that arrives in pieces."""

    def __init__(self) -> None:
        self.done = False
        self._open: list[str] = []
        self._state = "value"
        self._rest = ""
        self._is_key = False

    def take(self, text: str, at: int) -> int:
        """Scan from index `at` and return the index after the value's last character. Raises BrokenJson."""
        while at < len(text) and not self.done:
            at = getattr(self, f"_{self._state}")(text, at)
        return at

    def end(self) -> None:
        """Mark the end of the text, which completes a number at the top level."""
        if self._state == "number" and self._rest in _WHOLE_NUMBER:
            self._ended()

    def _value(self, text: str, at: int) -> int:
        char = text[at]
        if char in _WHITE:
            return at + 1
        if char == "]" and self._rest == "first":
            return self._closed(at, "[")
        self._begin(char, at)
        return at + 1

    def _begin(self, char: str, at: int) -> None:
        self._rest = ""
        if char == "{":
            self._open.append(char)
            self._state, self._rest = "key", "first"
        elif char == "[":
            self._open.append(char)
            self._rest = "first"
        elif char == '"':
            self._state, self._is_key = "string", False
        elif char in _WORDS:
            self._state, self._rest = "word", _WORDS[char]
        elif char == "-" or _kind(char) in "0d":
            self._state, self._rest = "number", {"-": "-", "0": "0", "d": "n"}[_kind(char)]
        else:
            raise BrokenJson(at)

    def _key(self, text: str, at: int) -> int:
        char = text[at]
        if char == '"':
            self._state, self._is_key = "string", True
        elif char == "}" and self._rest == "first":
            return self._closed(at, "{")
        elif char not in _WHITE:
            raise BrokenJson(at)
        return at + 1

    def _colon(self, text: str, at: int) -> int:
        if text[at] == ":":
            self._state, self._rest = "value", ""
        elif text[at] not in _WHITE:
            raise BrokenJson(at)
        return at + 1

    def _after(self, text: str, at: int) -> int:
        char = text[at]
        if char == ",":
            self._state, self._rest = ("key" if self._open[-1] == "{" else "value"), ""
        elif char in "}]":
            return self._closed(at, "{" if char == "}" else "[")
        elif char not in _WHITE:
            raise BrokenJson(at)
        return at + 1

    def _string(self, text: str, at: int) -> int:
        match = _PLAIN.match(text, at)
        assert match is not None
        at = match.end()
        if at == len(text):
            return at
        if text[at] == "\\":
            self._state = "escape"
        elif text[at] != '"':
            raise BrokenJson(at)
        elif self._is_key:
            self._state = "colon"
        else:
            self._ended()
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._state, self._rest = "hex", "uuuu"
        elif text[at] in '"\\/bfnrt':
            self._state = "string"
        else:
            raise BrokenJson(at)
        return at + 1

    def _hex(self, text: str, at: int) -> int:
        if text[at] not in "0123456789abcdefABCDEF":
            raise BrokenJson(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._state = "string"
        return at + 1

    def _word(self, text: str, at: int) -> int:
        if text[at] != self._rest[0]:
            raise BrokenJson(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._ended()
        return at + 1

    def _number(self, text: str, at: int) -> int:
        after = _NUMBER[self._rest].get(_kind(text[at]))
        if after is not None:
            self._rest = after
            return at + 1
        if self._rest not in _WHOLE_NUMBER:
            raise BrokenJson(at)
        self._ended()
        return at

    def _closed(self, at: int, opened: str) -> int:
        if self._open.pop() != opened:
            raise BrokenJson(at)
        self._ended()
        return at + 1

    def _ended(self) -> None:
        self._state, self._rest = "after", ""
        self.done = not self._open


def _kind(char: str) -> str:
    if char in "123456789":
        return "d"
    return "e" if char == "E" else char


ARGUMENTS = ("arguments", "parameters")


def json_value(page: Page) -> Reading[str]:
    """Read one complete JSON value as text. Raises NoCall if it is invalid."""
    value, found = JsonValue(), ""
    while not value.done:
        yield from peek(page)
        start = page.at
        try:
            page.at = value.take(page.text, start)
        except BrokenJson as error:
            raise NoCall from error
        found += page.text[start : page.at]
    return found


def arguments(page: Page, calls: Calls, tool: Tool) -> Reading[None]:
    """Read the arguments of a tool's call: an object, a string that contains one, or null.

    Raises NoCall if they are invalid; parts before the error have been returned by then.
    """
    if (yield from peek(page)) != "{":
        text = _object_in((yield from json_value(page)))
        yield calls.begin(tool)
        yield calls.arguments(text)
        return
    yield calls.begin(tool)
    value = JsonValue()
    while not value.done:
        yield from peek(page)
        start, broken = page.at, False
        try:
            page.at = value.take(page.text, start)
        except BrokenJson as error:
            page.at, broken = error.at, True
        if page.at > start:
            yield calls.arguments(page.text[start : page.at])
        if broken:
            raise NoCall


def call_object(page: Page, calls: Calls, keys: Sequence[str] = ARGUMENTS) -> Reading[None]:
    """Read `{"name": ..., "arguments": {...}}`, with keys in any order and other keys ignored; missing arguments are
    {}.
    """
    tool, held, begun = None, None, False
    yield from expect(page, "{")
    while True:
        key = yield from _key(page)
        if begun and (key == "name" or key in keys):
            raise NoCall
        if key == "name":
            tool = calls.tool(_parsed((yield from json_value(page))))
        elif key not in keys:
            yield from json_value(page)
        elif tool is None:
            held = _object_in((yield from json_value(page)))
        else:
            yield from arguments(page, calls, tool)
            begun = True
        yield from blanks(page)
        if (yield from expect(page, ",", "}")) == "}":
            break
    if tool is None:
        raise NoCall
    if not begun:
        yield calls.begin(tool)
        yield calls.arguments(held or "{}")


def call_objects(page: Page, calls: Calls, keys: Sequence[str] = ARGUMENTS) -> Reading[None]:
    """Read one call object, or a list of them."""
    if (yield from peek(page)) == "{":
        yield from call_object(page, calls, keys)
        return
    yield from expect(page, "[")
    yield from listed(page, calls, partial(call_object, keys=keys))


def _key(page: Page) -> Reading[object]:
    yield from blanks(page)
    if (yield from peek(page)) != '"':
        raise NoCall
    key = _parsed((yield from json_value(page)))
    yield from blanks(page)
    yield from expect(page, ":")
    yield from blanks(page)
    return key


def _object_in(text: str) -> str:
    """Return the JSON object that a JSON value is, or contains as a string; {} for null. Raises NoCall for other
    values.
    """
    value = _parsed(text)
    if isinstance(value, str):
        text, value = value, _parsed(value)
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise NoCall
    return text


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoCall from error


def json_format(
    name: str, signs: tuple[tuple[str, ...], ...], style: Style, wrapping: Wrapping, *, special: bool
) -> CallFormat:
    """Return a format whose calls are JSON objects that name a tool and have arguments of its schema."""
    begins = [OBJECT_OR_LIST if wrapping.begin == "[" else OBJECT]

    def write(tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        return wrapped(named(tools, "arguments"), wrapping, begins, special_id, required=required, parallel=parallel)

    return CallFormat(name, special, signs, style, write)
