"""DeepSeek V3 and R1: a section of calls, each a kind, a name and fenced arguments."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import SpecialId, Wrapping, arguments, escaped, marked, spaced_mark, text, wrapped
from plimsoll_runtime.tools.json_calls import arguments as read_arguments
from plimsoll_runtime.tools.output_parser import MOST_NAME, CallFormat, Calls, Style, section
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, closing, expect, until

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _MIDDLE, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCE = "```"


def _write(tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
    begin = spaced_mark(_CALL, special_id, required=required)
    middle, end = (marked(marker, special_id) for marker in (_MIDDLE, _CALL_END))
    calls = [
        " ".join((begin, '"function"', middle, text(f"{tool.name}\n```json\n"), arguments(tool), text("\n```"), end))
        for tool in tools
    ]
    wrapping = Wrapping(marker=_CALLS, between="\n", close=_CALLS_END)
    return wrapped(calls, wrapping, [escaped(_CALL)], special_id, required=required, parallel=parallel)


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    yield from section(page, calls, _read_call, begin=_CALL, end=_CALLS_END)


def _read_call(page: Page, calls: Calls) -> Reading[None]:
    yield from until(page, _MIDDLE, most=MOST_NAME)
    name, _ = yield from until(page, "\n", most=MOST_NAME)
    tool = calls.tool(name.strip())
    yield from blanks(page)
    yield from expect(page, "```json")
    yield from blanks(page)
    yield from read_arguments(page, calls, tool)
    yield from closing(page, _FENCE)
    yield from closing(page, _CALL_END)


DEEPSEEK_V3 = CallFormat("deepseek_v3", True, ((_CALLS, "```json"),), Style((_CALLS,), _read), _write)
"""`<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, arguments in a fence, `<｜tool▁call▁end｜>`."""
