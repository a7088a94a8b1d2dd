"""Hermes, Qwen 2.5 and 3, Granite 4 and many others: `<tool_call>` around an object with a name and arguments."""

from __future__ import annotations

from plimsoll_runtime.tools.grammar import Wrapping
from plimsoll_runtime.tools.json_calls import call_object, json_format
from plimsoll_runtime.tools.output_parser import Calls, Style
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, closing

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    yield from blanks(page)
    yield from call_object(page, calls)
    yield from closing(page, _END)


HERMES = json_format(
    name="hermes",
    special=False,
    signs=((_BEGIN, "arguments"),),
    style=Style((_BEGIN,), _read),
    wrapping=Wrapping(marker=_BEGIN, begin="\n", end="\n", close=_END, gap="\n"),
)
