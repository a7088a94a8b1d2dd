"""MiniMax M2: invocations and parameters in tags, values as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import SpecialId, Wrapping, escaped, one_name, spaced, text, wrapped
from plimsoll_runtime.tools.output_parser import MOST_NAME, CallFormat, Calls, Style, section
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, expect, until
from plimsoll_runtime.tools.text_arguments import Fields, Texts, arguments_of

_CALLS, _CALLS_END = "<minimax:tool_call>", "</minimax:tool_call>"
_CALL, _CALL_END = "<invoke name=", "</invoke>"
_LINE = text("\n")
_PARAMETER, _VALUE_END = "<parameter name=", "</parameter>"


def _write(tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
    """Return the grammar. Parameters must be in the order of the schema."""
    texts = Texts(special_id)
    calls = [_call(tool, texts, required=required) for tool in tools]
    wrapping = Wrapping(marker=_CALLS, begin="\n", between="\n", end="\n", close=_CALLS_END)
    begins = [f'{escaped(_CALL)}"{one_name(tools)}">']
    return texts.rules + wrapped(calls, wrapping, begins, special_id, required=required, parallel=parallel)


def _call(tool: Tool, texts: Texts, *, required: bool) -> str:
    parts = [spaced(f'{_CALL}"{tool.name}">\n', required=required)]
    for argument in arguments_of(tool):
        begin = text(f'{_PARAMETER}"{argument.name}">')
        whole = f"{begin} {texts.value(argument, _VALUE_END)} {_LINE}"
        parts.append(whole if argument.required else f"({whole})?")
    return " ".join([*parts, text(_CALL_END)])


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    yield from section(page, calls, _read_call, begin=_CALL, end=_CALLS_END)


def _read_call(page: Page, calls: Calls) -> Reading[None]:
    fields = Fields(calls, calls.tool((yield from _name(page))))
    yield from fields.begin()
    yield from blanks(page)
    while (yield from expect(page, _PARAMETER, _CALL_END)) == _PARAMETER:
        yield from fields.field(page, (yield from _name(page)), _VALUE_END)
        yield from blanks(page)
    yield from fields.end()


def _name(page: Page) -> Reading[str]:
    name, _ = yield from until(page, ">", most=MOST_NAME)
    return name.strip().strip("\"'")


MINIMAX = CallFormat("minimax", True, (("minimax:tool_call",),), Style((_CALLS,), _read), _write)
"""`<minimax:tool_call>`, `<invoke name="f">`, `<parameter name="a">1</parameter>`, with their end tags."""
