"""Llama 4, and Gemma 3 as its documents prompt it: a list of calls as Python writes them."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.answer import AnswerParser, Calls, Style
from plimsoll_runtime.tools.grammar import SpecialId, one_name, one_of, opening, spaced, text
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.pythonic import call, keywords
from plimsoll_runtime.tools.reading import Page, Reading, blanks, closing, expect
from plimsoll_runtime.tools.sections import listed

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
        return AnswerParser(Style((_BEGIN,), _read_pythonic, opening=("[",)), tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """A list from the beginning of the answer. Other text begins with no list that names a tool."""
        tails, rules = keywords(tools)
        pairs = list(zip(tools, tails, strict=True))
        first = [f"{spaced(f'[{tool.name}(', required=required)} {tail}" for tool, tail in pairs]
        more = [f"{text(f', {tool.name}(')} {tail}" for tool, tail in pairs]
        others = " other*" if parallel else ""
        rules += f'calls: call{others} "]"\n{one_of(first)}other: {" | ".join(more)}\n'
        return opening(rules, [rf"\[{one_name(tools)}\("], required=required)


def _read_pythonic(page: Page, calls: Calls, marker: str) -> Reading[None]:
    if marker == _BEGIN:
        yield from blanks(page)
        yield from expect(page, "[")
    yield from listed(page, calls, call)
    yield from closing(page, _END)


LLAMA4_PYTHONIC = Llama4Pythonic()
