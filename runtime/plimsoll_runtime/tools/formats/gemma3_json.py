"""Gemma 3, as its documents prompt it for JSON: bare objects with a name and parameters, or in a fence."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.answer import AnswerParser, Calls, Style
from plimsoll_runtime.tools.grammar import SpecialId, named, one_name, one_of, opening
from plimsoll_runtime.tools.json_calls import call_objects
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.reading import Page, Reading, blanks, closing

_FENCES = ("```json", "```tool_call", "```tool_code")


class Gemma3Json:
    """`{"name": "f", "parameters": {...}}` or a list of them, where the answer begins, or in a fence anywhere."""

    name = "gemma3_json"
    special = False

    def fits(self, template: str) -> bool:
        """It is Gemma's, and asks for parameters in JSON."""
        return "<start_of_turn>" in template and "parameters" in template and "[func_name1(" not in template

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """For one answer."""
        return AnswerParser(Style(_FENCES, _read_json, opening=("{", "[")), tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """Bare objects on lines. Other text begins with no object that names a tool."""
        more = r' ("\n" call)*' if parallel else ""
        rules = f"calls: call{more}\n{one_of(named(tools, 'parameters', required=required))}"
        return opening(rules, [rf'\{{"name": "{one_name(tools)}"'], required=required)


def _read_json(page: Page, calls: Calls, marker: str) -> Reading[None]:
    if marker in ("{", "["):
        page.at -= 1
        yield from call_objects(page, calls)
        return
    yield from blanks(page)
    yield from call_objects(page, calls)
    yield from closing(page, "```")


GEMMA3_JSON = Gemma3Json()
