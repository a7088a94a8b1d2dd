"""Calls that are written as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from plimsoll_runtime.tools.answer import Calls
from plimsoll_runtime.tools.json_text import BrokenJson, JsonValue
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.reading import NoCall, Page, Reading, blanks, expect, peek
from plimsoll_runtime.tools.sections import listed

ARGUMENTS = ("arguments", "parameters")


def json_value(page: Page) -> Reading[str]:
    """One JSON value, whole, as text. Raises NoCall where it is none."""
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
    """A call of a tool: its arguments stand here, as an object, as a text that holds one, or as null.

    Raises NoCall where they are none, in the middle where they are broken there.
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
    """`{"name": ..., "arguments": {...}}`, in any order and with anything beside them; no arguments are {}."""
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
    """One such object, or a list of them."""
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
    """The JSON object that a JSON value is, or holds as a text."""
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
