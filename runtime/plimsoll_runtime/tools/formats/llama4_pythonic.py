"""Llama 4, and Gemma 3 as its documents prompt it: a list of calls as Python writes them."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.answer import AnswerParser, Calls, Style
from plimsoll_runtime.tools.fields import Fields
from plimsoll_runtime.tools.grammar import SpecialId, refused
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.reading import Page, Reading, blanks, closing, expect, peek

_BEGIN, _END = "<|python_start|>", "<|python_end|>"


class Llama4Pythonic:
    """`[f(a=1), g(b="x")]`, where the answer begins, or after `<|python_start|>` anywhere."""

    name = "llama4_pythonic"
    special = True

    def fits(self, template: str) -> bool:
        """Its prompt shows how functions are called in a list."""
        return "[func_name1(" in template

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """For one answer."""
        return AnswerParser(Style((_BEGIN,), _read, opening=("[",)), tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """None yet. Raises ConstraintError."""
        raise refused(self.name)


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    if marker == _BEGIN:
        yield from blanks(page)
        yield from expect(page, "[")
    end = ","
    while end == ",":
        yield from blanks(page)
        yield from _call(page, calls)
        page.keep()
        yield from blanks(page)
        end = yield from expect(page, ",", "]")
    yield from closing(page, _END)


def _call(page: Page, calls: Calls) -> Reading[None]:
    name = yield from _name(page)
    yield from expect(page, "(")
    fields = Fields(calls, calls.tool(name))
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
    name = ""
    while (char := (yield from peek(page))).isalnum() or char in "_-.":
        name += char
        page.at += 1
    return name


def _expression(page: Page) -> Reading[str]:
    """The text up to the comma or bracket that ends it, which is not read."""
    text, depth, quote = "", 0, ""
    while True:
        char = yield from peek(page)
        if quote and char == "\\":
            text += char
            page.at += 1
            char = yield from peek(page)
        elif quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif depth == 0 and char in ",)]}":
            return text
        else:
            depth += (char in "([{") - (char in ")]}")
        text += char
        page.at += 1


FORMAT = Llama4Pythonic()
