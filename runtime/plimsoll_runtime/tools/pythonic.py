"""Calls in Python syntax: a name, and keyword arguments with literals."""

from __future__ import annotations

import re
from collections.abc import Sequence

from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import schema, separated, text
from plimsoll_runtime.tools.output_parser import Calls
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, expect, peek
from plimsoll_runtime.tools.text_arguments import Fields, arguments_of

_NAME = re.compile(r"[\w.-]+")


def call(page: Page, calls: Calls) -> Reading[None]:
    """Read one call, starting at its name."""
    found = yield from _name(page)
    yield from expect(page, "(")
    fields = Fields(calls, calls.tool(found))
    yield from fields.begin()
    yield from blanks(page)
    while (yield from peek(page)) != ")":
        keyword = yield from _name(page)
        yield from blanks(page)
        yield from expect(page, "=")
        yield from fields.literal(keyword, (yield from _expression(page)))
        if (yield from peek(page)) == ",":
            page.at += 1
            yield from blanks(page)
    page.at += 1
    yield from fields.end()


def _name(page: Page) -> Reading[str]:
    """Read a name."""
    found = ""
    while (char := (yield from peek(page))).isalnum() or char in "_-.":
        found += char
        page.at += 1
    return found


def keywords(tools: Sequence[Tool]) -> tuple[list[str], str]:
    """Return, for each tool, the grammar after the opening parenthesis of a call, and the rules it needs. Literals are
    JSON, which the parser accepts as well. Raises ConstraintError.
    """
    tails, rules = [], ""
    for index, tool in enumerate(tools):
        arguments = arguments_of(tool)
        for argument in arguments:
            if not _NAME.fullmatch(argument.name):
                raise ConstraintError(f"{tool.name}: {argument.name!r} cannot be a keyword in this tool-call format")
        items = [(f"{text(f'{each.name}=')} {schema(each.value)}", each.required) for each in arguments]
        rules += separated(f"keywords_{index}", items, ", ")
        tails.append(f"keywords_{index} {text(')')}")
    return tails, rules


def _expression(page: Page) -> Reading[str]:
    """Read up to the comma or bracket that ends an expression, without that character."""
    found, depth, quote = "", 0, ""
    while True:
        char = yield from peek(page)
        if quote and char == "\\":
            found += char
            page.at += 1
            char = yield from peek(page)
        elif quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif depth == 0 and char in ",)]}":
            return found
        else:
            depth += (char in "([{") - (char in ")]}")
        found += char
        page.at += 1
