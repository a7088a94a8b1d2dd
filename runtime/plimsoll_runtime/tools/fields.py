"""Arguments that are written one by one, as a name and a text, and become an object as they come."""

from __future__ import annotations

import json

from plimsoll_runtime.tools.answer import Calls
from plimsoll_runtime.tools.json_text import BrokenJson, JsonValue
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.reading import WHITE, Ended, NoCall, Page, Reading, before, either, until
from plimsoll_runtime.tools.values import ANY, in_json, types_of


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
