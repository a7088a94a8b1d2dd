"""Qwen3-Coder: functions and parameters in tags, values as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.answer import AnswerParser, Calls, Style
from plimsoll_runtime.tools.fields import Fields
from plimsoll_runtime.tools.grammar import SpecialId, refused
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.reading import Page, Reading, blanks, closing, either, expect, until
from plimsoll_runtime.tools.sections import MOST_NAME

_CALL, _FUNCTION, _PARAMETER = "<tool_call>", "<function=", "<parameter="
_VALUE_ENDS = ("\n</parameter>", "</parameter>")


class Qwen3Coder:
    """`<tool_call>`, `<function=f>`, `<parameter=a>`, a value between line breaks, and the ends of all."""

    name = "qwen3_coder"
    special = False

    def fits(self, template: str) -> bool:
        """Its tags stand there."""
        return _FUNCTION in template and _PARAMETER in template

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """For one answer."""
        return AnswerParser(Style((_CALL, _FUNCTION), _read), tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """None yet. Raises ConstraintError."""
        raise refused(self.name)


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    if marker == _CALL:
        yield from blanks(page)
        yield from expect(page, _FUNCTION)
    name, _ = yield from until(page, ">", most=MOST_NAME)
    fields = Fields(calls, calls.tool(name.strip()))
    yield from fields.begin()
    yield from blanks(page)
    while (yield from expect(page, _PARAMETER, "</function>")) == _PARAMETER:
        parameter, _ = yield from until(page, ">", most=MOST_NAME)
        yield from either(page, "\n")
        yield from fields.field(page, parameter.strip(), *_VALUE_ENDS)
        yield from blanks(page)
    yield from fields.end()
    yield from closing(page, "</tool_call>")


FORMAT = Qwen3Coder()
