"""Gemma 3, as its documents prompt it: calls in a fence of `tool_code`, as Python writes them."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.answer import AnswerParser, Calls, Style
from plimsoll_runtime.tools.grammar import SpecialId, Wrapping, escaped, one_name, spaced, text, wrapped
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.pythonic import call, keywords
from plimsoll_runtime.tools.reading import Page, Reading, blanks, either, expect
from plimsoll_runtime.tools.sections import listed

_FENCE, _END = "```tool_code", "```"
_PRINT = "print("


class Gemma3:
    """A fence of `tool_code` with a call on each line, alone, in `print(...)` or in a list."""

    name = "gemma3"
    special = False

    def fits(self, template: str) -> bool:
        """Its prompt shows the fence."""
        return "tool_code" in template

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """For one answer."""
        return AnswerParser(Style((_FENCE,), _read), tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """Calls on lines of one fence. Where words are allowed, each may stand in `print(...)`."""
        tails, rules = keywords(tools)
        pairs = list(zip(tools, tails, strict=True))
        calls = [f"{spaced(f'{tool.name}(', required=required)} {tail}" for tool, tail in pairs]
        if not required:
            calls += [f"{spaced(f'{_PRINT}{tool.name}(')} {tail} {text(')')}" for tool, tail in pairs]
        wrapping = Wrapping(marker=_FENCE, begin="\n", between="\n", end="\n", close=_END)
        begins = [f"({escaped(_PRINT)})?{one_name(tools)}\\("]
        return rules + wrapped(calls, wrapping, begins, special_id, required=required, parallel=parallel)


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    while True:
        yield from blanks(page)
        if (yield from either(page, _END)):
            return
        around = yield from either(page, _PRINT, "[")
        if around == "[":
            yield from listed(page, calls, call)
        else:
            yield from call(page, calls)
            page.keep()
            yield from blanks(page)
            if around == _PRINT:
                yield from expect(page, ")")
        page.keep()


GEMMA3 = Gemma3()
