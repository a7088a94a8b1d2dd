"""Arguments as Gemma writes them: `{city:<escape>Oslo<escape>,days:3}`, where a mark stands around each text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from plimsoll_runtime.engine.constraint import ConstraintError
from plimsoll_runtime.tools.answer import Calls
from plimsoll_runtime.tools.fields import string
from plimsoll_runtime.tools.grammar import SpecialId, marked, schema, separated, spaced, text
from plimsoll_runtime.tools.json_calls import json_value
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.plain import Argument, Texts, arguments_of
from plimsoll_runtime.tools.reading import NoCall, Page, Reading, blanks, either, expect, peek, until
from plimsoll_runtime.tools.sections import MOST_NAME
from plimsoll_runtime.tools.values import ANY, in_json, types_of

MOST_DEPTH = 64
"""How deep values may be nested."""
_STOPS = (",", "}", "]")


class Quoted:
    """Reads the arguments of calls whose texts stand between two of the mark `quote`."""

    def __init__(self, page: Page, calls: Calls, quote: str) -> None:
        self._page = page
        self._calls = calls
        self._quote = quote

    def arguments(self, tool: Tool) -> Reading[None]:
        """A call of a tool: its arguments stand behind a brace that was read."""
        yield self._calls.begin(tool)
        yield from self._object(tool, MOST_DEPTH)

    def _object(self, tool: Tool | None, depth: int) -> Reading[None]:
        """Keys and values; those of a `tool` are of the types that its schema allows."""
        yield self._calls.arguments("{")
        seen: set[str] = set()
        yield from blanks(self._page)
        while not (yield from either(self._page, "}")):
            key = yield from self._key()
            if key in seen:
                raise NoCall
            lead = ", " if seen else ""
            seen.add(key)
            yield self._calls.arguments(f"{lead}{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._value(ANY if tool is None else types_of(tool, key), depth - 1)
            yield from self._between("}")
        yield self._calls.arguments("}")

    def _list(self, depth: int) -> Reading[None]:
        yield self._calls.arguments("[")
        lead = ""
        yield from blanks(self._page)
        while not (yield from either(self._page, "]")):
            yield self._calls.arguments(lead)
            lead = ", "
            yield from self._value(ANY, depth - 1)
            yield from self._between("]")
        yield self._calls.arguments("]")

    def _value(self, types: frozenset[str], depth: int) -> Reading[None]:
        page = self._page
        if not depth:
            raise NoCall
        yield from blanks(page)
        if (yield from either(page, self._quote)):
            yield from string(page, self._calls, self._quote)
        elif (yield from either(page, "{")):
            yield from self._object(None, depth)
        elif (yield from either(page, "[")):
            yield from self._list(depth)
        elif (yield from peek(page)) == '"':
            yield self._calls.arguments((yield from json_value(page)))
        else:
            bare, stop = yield from until(page, *_STOPS)
            page.at -= len(stop)
            yield self._calls.arguments(in_json(bare.rstrip(), types))

    def _key(self) -> Reading[str]:
        page = self._page
        if (yield from either(page, self._quote)):
            key, _ = yield from until(page, self._quote, most=MOST_NAME)
        elif (yield from peek(page)) == '"':
            key = json.loads((yield from json_value(page)))
        else:
            key, _ = yield from until(page, ":", most=MOST_NAME)
            return key.strip()
        yield from blanks(page)
        yield from expect(page, ":")
        return key

    def _between(self, end: str) -> Reading[None]:
        """A comma, or the end, which stays."""
        yield from blanks(self._page)
        if (yield from expect(self._page, ",", end)) == end:
            self._page.at -= len(end)
        yield from blanks(self._page)


def quoted_calls(tools: Sequence[Tool], quote: str, special_id: SpecialId, *, required: bool) -> tuple[list[str], str]:
    """How some tools are called, `call:f{...}`, for a grammar, and the rules that needs. Raises ConstraintError."""
    texts, calls, rules = Texts(special_id), [], ""
    for index, tool in enumerate(tools):
        arguments = arguments_of(tool)
        items = [(_pair(tool, each, texts, quote, special_id), each.required) for each in arguments]
        rules += separated(f"arguments_{index}", items, ",")
        calls.append(f"{spaced(f'call:{tool.name}{{', required=required)} arguments_{index} {text('}')}")
    return calls, texts.rules + rules


def _pair(tool: Tool, argument: Argument, texts: Texts, quote: str, special_id: SpecialId) -> str:
    if ":" in argument.name or not argument.name.strip() or argument.name[0] in '"{}[],':
        raise ConstraintError(f"{tool.name}: {argument.name!r} cannot be a key in calls of this format")
    if argument.is_text:
        return f"{text(f'{argument.name}:')} {marked(quote, special_id)} {texts.text(argument, quote, quote)}"
    return f"{text(f'{argument.name}:')} {schema(argument.value)}"
