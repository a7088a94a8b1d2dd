"""Qwen3-Coder: functions and parameters in tags, values as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.answer import AnswerParser, Calls, Style
from plimsoll_runtime.tools.fields import Fields
from plimsoll_runtime.tools.grammar import SpecialId, Wrapping, text, wrapped
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.plain import Texts, arguments_of
from plimsoll_runtime.tools.reading import Page, Reading, blanks, closing, either, expect, until
from plimsoll_runtime.tools.sections import MOST_NAME

_CALL, _CALL_END, _FUNCTION, _PARAMETER = "<tool_call>", "</tool_call>", "<function=", "<parameter="
_LINE = text("\n")
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
        """Parameters in the order of the schema."""
        texts = Texts(special_id)
        calls = [_call(tool, texts) for tool in tools]
        wrapping = Wrapping(marker=_CALL, begin="\n", end="\n", close=_CALL_END, gap="\n")
        return texts.rules + wrapped(calls, wrapping, special_id, required=required, parallel=parallel)


def _call(tool: Tool, texts: Texts) -> str:
    parts = [text(f"{_FUNCTION}{tool.name}>\n")]
    for argument in arguments_of(tool):
        begin = text(f"{_PARAMETER}{argument.name}>\n")
        whole = f"{begin} {texts.value(argument, _VALUE_ENDS[0], barred=_VALUE_ENDS[1])} {_LINE}"
        parts.append(whole if argument.required else f"({whole})?")
    return " ".join([*parts, text("</function>")])


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
    yield from closing(page, _CALL_END)


FORMAT = Qwen3Coder()
