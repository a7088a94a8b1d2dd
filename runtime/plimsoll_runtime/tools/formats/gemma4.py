"""Gemma 4 and FunctionGemma: calls `call:f{...}` between two markers, with quote markers around texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.tools.arguments import ANY, in_json, types_of
from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import (
    SpecialId,
    Wrapping,
    marked,
    one_name,
    schema,
    separated,
    spaced,
    text,
    wrapped,
)
from plimsoll_runtime.tools.json_calls import json_value
from plimsoll_runtime.tools.output_parser import MOST_NAME, AnswerParser, Calls, Style
from plimsoll_runtime.tools.stream_reader import NoCall, Page, Reading, blanks, closing, either, expect, peek, until
from plimsoll_runtime.tools.text_arguments import Argument, Texts, arguments_of, string

MOST_DEPTH = 64
"""Maximum nesting of values."""
_STOPS = (",", "}", "]")


class Quoted:
    """Parses arguments whose texts are enclosed in the marker `quote`."""

    def __init__(self, page: Page, calls: Calls, quote: str) -> None:
        self._page = page
        self._calls = calls
        self._quote = quote

    def arguments(self, tool: Tool) -> Reading[None]:
        """Parse the arguments of a call after their opening brace."""
        yield self._calls.begin(tool)
        yield from self._object(tool, MOST_DEPTH)

    def _object(self, tool: Tool | None, depth: int) -> Reading[None]:
        """Parse keys and values; if `tool` is given, values have the types that its schema allows."""
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
        """Read a comma, or find the end without reading it."""
        yield from blanks(self._page)
        if (yield from expect(self._page, ",", end)) == end:
            self._page.at -= len(end)
        yield from blanks(self._page)


def quoted_calls(tools: Sequence[Tool], quote: str, special_id: SpecialId, *, required: bool) -> tuple[list[str], str]:
    """Return grammar expressions of calls `call:f{...}` for the tools, and the rules they need. Raises
    ConstraintError.
    """
    texts, calls, rules = Texts(special_id), [], ""
    for index, tool in enumerate(tools):
        arguments = arguments_of(tool)
        items = [(_pair(tool, each, texts, quote, special_id), each.required) for each in arguments]
        rules += separated(f"arguments_{index}", items, ",")
        calls.append(f"{spaced(f'call:{tool.name}{{', required=required)} arguments_{index} {text('}')}")
    return calls, texts.rules + rules


def _pair(tool: Tool, argument: Argument, texts: Texts, quote: str, special_id: SpecialId) -> str:
    if ":" in argument.name or not argument.name.strip() or argument.name[0] in '"{}[],':
        raise ConstraintError(f"{tool.name}: {argument.name!r} cannot be a key in this tool-call format")
    if argument.is_text:
        return f"{text(f'{argument.name}:')} {marked(quote, special_id)} {texts.text(argument, quote, quote)}"
    return f"{text(f'{argument.name}:')} {schema(argument.value)}"


@dataclass(frozen=True, slots=True)
class QuotedFormat:
    """A format with calls `call:f{...}` between `begin` and `end`, and with `quote` around texts. All three are special
    tokens.
    """

    name: str
    begin: str
    end: str
    quote: str
    special: bool = True

    def fits(self, template: str) -> bool:
        return self.begin in template

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        return AnswerParser(Style((self.begin,), self._read), tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """Return the grammar. Arguments must be in the order of the schema."""
        calls, rules = quoted_calls(tools, self.quote, special_id, required=required)
        wrapping = Wrapping(marker=self.begin, close=self.end)
        begins = [f"call:{one_name(tools)}\\{{"]
        return rules + wrapped(calls, wrapping, begins, special_id, required=required, parallel=parallel)

    def _read(self, page: Page, calls: Calls, marker: str) -> Reading[None]:
        yield from blanks(page)
        yield from expect(page, "call:")
        name, _ = yield from until(page, "{", most=MOST_NAME)
        yield from Quoted(page, calls, self.quote).arguments(calls.tool(name.strip()))
        yield from closing(page, self.end)


GEMMA4 = QuotedFormat("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>')

FUNCTIONGEMMA = QuotedFormat("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>")
