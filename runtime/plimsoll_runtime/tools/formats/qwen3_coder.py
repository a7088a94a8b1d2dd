"""Qwen3-Coder, Qwen 3.5 and Seed-OSS: `<function=f>` and `<parameter=a>` tags, with values as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import SpecialId, Wrapping, escaped, one_name, spaced, text, wrapped
from plimsoll_runtime.tools.output_parser import MOST_NAME, AnswerParser, Calls, Style
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, closing, either, expect, until
from plimsoll_runtime.tools.text_arguments import Fields, Texts, arguments_of

_FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END = "<function=", "</function>", "<parameter=", "</parameter>"
_LINE = text("\n")


@dataclass(frozen=True, slots=True)
class FunctionTags:
    """A format with function tags, whose calls are between `begin` and `end`. `edge` is on both sides of a value."""

    name: str
    special: bool
    begin: str
    end: str
    edge: str = ""

    def fits(self, template: str) -> bool:
        return all(tag in template for tag in (self.begin, _FUNCTION, _PARAMETER))

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """Return a parser. The outer tag is optional, because some models leave it out."""
        return AnswerParser(Style((self.begin, _FUNCTION), self._read), tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """Return the grammar. Parameters must be in the order of the schema."""
        texts = Texts(special_id)
        calls = [self._call(tool, texts, required=required) for tool in tools]
        wrapping = Wrapping(marker=self.begin, begin="\n", end="\n", close=self.end, gap="\n")
        begins = [f"{escaped(_FUNCTION)}{one_name(tools)}>"]
        return texts.rules + wrapped(calls, wrapping, begins, special_id, required=required, parallel=parallel)

    def _call(self, tool: Tool, texts: Texts, *, required: bool) -> str:
        parts = [spaced(f"{_FUNCTION}{tool.name}>\n", required=required)]
        for argument in arguments_of(tool):
            begin = text(f"{_PARAMETER}{argument.name}>{self.edge}")
            whole = f"{begin} {texts.value(argument, self.edge + _PARAMETER_END, barred=_PARAMETER_END)} {_LINE}"
            parts.append(whole if argument.required else f"({whole})?")
        return " ".join([*parts, text(_FUNCTION_END)])

    def _read(self, page: Page, calls: Calls, marker: str) -> Reading[None]:
        if marker == self.begin:
            yield from blanks(page)
            yield from expect(page, _FUNCTION)
        name, _ = yield from until(page, ">", most=MOST_NAME)
        fields = Fields(calls, calls.tool(name.strip()))
        yield from fields.begin()
        yield from blanks(page)
        while (yield from expect(page, _PARAMETER, _FUNCTION_END)) == _PARAMETER:
            parameter, _ = yield from until(page, ">", most=MOST_NAME)
            if self.edge:
                yield from either(page, self.edge)
            yield from fields.field(page, parameter.strip(), self.edge + _PARAMETER_END, _PARAMETER_END)
            yield from blanks(page)
        yield from fields.end()
        yield from closing(page, self.end)


QWEN3_CODER = FunctionTags("qwen3_coder", special=False, begin="<tool_call>", end="</tool_call>", edge="\n")

SEED_OSS = FunctionTags("seed_oss", special=True, begin="<seed:tool_call>", end="</seed:tool_call>")
