"""Parses outputs with tool calls: text up to a marker, a call in some format, then text again. Also parses lists and
sections of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from plimsoll_runtime.tools.base import Arguments, CallBegins, Tool
from plimsoll_runtime.tools.stream_reader import (
    WHITE,
    Ended,
    NoCall,
    Page,
    PartReader,
    Reading,
    before,
    blanks,
    either,
    expect,
    given,
)


class Calls:
    """The calls of one output so far, and the available tools."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.count = 0
        self._tools = {tool.name: tool for tool in tools}

    def tool(self, name: object) -> Tool:
        """Return the tool of a name. Raises NoCall if there is none."""
        if not isinstance(name, str) or name not in self._tools:
            raise NoCall
        return self._tools[name]

    def begin(self, tool: Tool) -> CallBegins:
        """Start a call."""
        self.count += 1
        return CallBegins(self.count - 1, tool.name)

    def arguments(self, text: str) -> Arguments:
        """Return more arguments of the last call."""
        return Arguments(self.count - 1, text)


@dataclass(frozen=True, slots=True)
class Style:
    """How an output contains calls.

    `markers` start calls anywhere, `opening` only at the start of the output or after a call. No marker is a prefix of
    another. `read` parses the text after a marker. Text that it has read when it returns or yields a part belongs to a
    call; if it raises NoCall, the rest is text.
    """

    markers: tuple[str, ...]
    read: Callable[[Page, Calls, str], Reading[None]]
    opening: tuple[str, ...] = ()


class AnswerParser(PartReader):
    """Parses one output. White space before a call, and after it if no text follows, is left out."""

    def __init__(self, style: Style, tools: Sequence[Tool]) -> None:
        page = Page()
        super().__init__(page, _answer(page, style, Calls(tools)))


class GrammarWriter(Protocol):
    """Writes the grammar of a format, see `ToolFormat.grammar`."""

    def __call__(
        self, tools: Sequence[Tool], special_id: Callable[[str], int | None], *, required: bool, parallel: bool
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A tool-call format made of a style and a grammar. A template uses it if it contains all texts of one member of
    `signs` and none of `barred`.
    """

    name: str
    special: bool
    signs: tuple[tuple[str, ...], ...]
    style: Style
    write: GrammarWriter
    barred: tuple[str, ...] = ()

    def fits(self, template: str) -> bool:
        has_sign = any(all(sign in template for sign in signs) for signs in self.signs)
        return has_sign and not any(sign in template for sign in self.barred)

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        return AnswerParser(self.style, tools)

    def grammar(
        self, tools: Sequence[Tool], special_id: Callable[[str], int | None], *, required: bool, parallel: bool
    ) -> str:
        return self.write(tools, special_id, required=required, parallel=parallel)


def _answer(page: Page, style: Style, calls: Calls) -> Reading[None]:
    at_edge = True
    while True:
        marker = yield from (_edge(page, style) if at_edge else _text(page, style))
        if marker:
            at_edge = yield from _call(page, style, calls, marker)
            continue
        if not at_edge or not calls.count or page.text[page.kept : page.at].strip(WHITE) or not page.is_over():
            yield from given(page)
        if page.is_over():
            return
        at_edge = False


def _edge(page: Page, style: Style) -> Reading[str]:
    """Return the marker after white space, or ""."""
    try:
        yield from blanks(page)
        return (yield from either(page, *style.markers, *style.opening))
    except Ended:
        page.at = len(page.text)
        return ""


def _text(page: Page, style: Style) -> Reading[str]:
    """Yield the text before a marker and return the marker, or "" at the end of the output."""
    while (yield from before(page, *style.markers)):
        yield from given(page)
    return "" if page.is_over() else (yield from either(page, *style.markers))


def _call(page: Page, style: Style, calls: Calls, marker: str) -> Reading[bool]:
    """Parse after a marker. Return whether it was a call. Without any call (for example an empty list) it is text."""
    before_it, after = calls.count, page.at - page.kept
    try:
        for part in style.read(page, calls, marker):
            if part is not None:
                page.keep()
            yield part
        if calls.count > before_it:
            page.keep()
            return True
    except Ended:
        if calls.count > before_it:
            page.at = len(page.text)
            page.keep()
            return True
    except NoCall:
        if calls.count > before_it:
            after = 0
    page.at = page.kept + after
    yield from given(page)
    return False


MOST_NAME = 256
"""Maximum number of characters of a name."""


def listed(page: Page, calls: Calls, read: Callable[[Page, Calls], Reading[None]]) -> Reading[None]:
    """Read calls separated by commas up to and including the closing bracket. The opening bracket was read before."""
    end = ","
    while end == ",":
        yield from blanks(page)
        yield from read(page, calls)
        page.keep()
        yield from blanks(page)
        end = yield from expect(page, ",", "]")


def section(
    page: Page, calls: Calls, read: Callable[[Page, Calls], Reading[None]], *, begin: str, end: str
) -> Reading[None]:
    """Read calls, each after `begin`, up to `end`, which may be missing."""
    yield from blanks(page)
    found = yield from expect(page, begin)
    while found == begin:
        yield from read(page, calls)
        page.keep()
        yield from blanks(page)
        found = yield from either(page, begin, end)
    if not found:
        page.at = page.kept
