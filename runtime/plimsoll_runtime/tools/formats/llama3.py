"""Llama 3.1 to 3.3, and Llama 4 with a template of JSON: bare objects with a name and parameters, joined by `;`."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.answer import AnswerParser, Calls, Style
from plimsoll_runtime.tools.grammar import SpecialId, named, one_name, one_of, opening
from plimsoll_runtime.tools.json_calls import call_objects
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.reading import Page, Reading, blanks, either

_MARKERS = ("<|python_tag|>", "<|python_start|>")


class Llama3:
    """`{"name": "f", "parameters": {...}}`, where the answer begins, or after `<|python_tag|>` anywhere."""

    name = "llama3"
    special = True

    def fits(self, template: str) -> bool:
        """Its prompt asks for parameters in JSON."""
        heads = ("<|start_header_id|>", "<|header_start|>", *_MARKERS)
        return "parameters" in template and any(head in template for head in heads)

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """For one answer."""
        return AnswerParser(Style(_MARKERS, _read, opening=("{",)), tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """Bare objects. Other text begins with no object that names a tool."""
        more = ' ("; " call)*' if parallel else ""
        rules = f"calls: call{more}\n{one_of(named(tools, 'parameters', required=required))}"
        return opening(rules, [rf'\{{"name": "{one_name(tools)}"'], required=required)


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    if marker == "{":
        page.at -= 1
    end = ";"
    while end == ";":
        yield from blanks(page)
        yield from call_objects(page, calls)
        page.keep()
        yield from blanks(page)
        end = yield from either(page, ";", "<|python_end|>")
    if not end:
        page.at = page.kept


LLAMA3 = Llama3()
