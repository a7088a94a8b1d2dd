"""Formats of Gemma's: `call:f{...}` between two markers, with a mark around each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.tools.answer import AnswerParser, Calls, Style
from plimsoll_runtime.tools.grammar import SpecialId, Wrapping, one_name, wrapped
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.quotes import Quoted, quoted_calls
from plimsoll_runtime.tools.reading import Page, Reading, blanks, closing, expect, until
from plimsoll_runtime.tools.sections import MOST_NAME


@dataclass(frozen=True, slots=True)
class QuotedFormat:
    """Such a format. All three of its marks are special tokens."""

    name: str
    begin: str
    end: str
    quote: str
    special: bool = True

    def fits(self, template: str) -> bool:
        """Whether its first marker stands in a chat template."""
        return self.begin in template

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """For one answer."""
        return AnswerParser(Style((self.begin,), self._read), tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """Arguments in the order of the schema."""
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
