"""Granite 3: `<|tool_call|>` before a list of objects with names and arguments."""

from __future__ import annotations

from plimsoll_runtime.tools.grammar import Wrapping
from plimsoll_runtime.tools.json_calls import call_objects, json_format
from plimsoll_runtime.tools.output_parser import Calls, Style
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, closing


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    yield from blanks(page)
    yield from call_objects(page, calls)
    yield from closing(page, "</tool_call>")


GRANITE = json_format(
    name="granite",
    special=True,
    signs=(("<|tool_call|>",),),
    style=Style(("<|tool_call|>", "<tool_call>"), _read),
    wrapping=Wrapping(marker="<|tool_call|>", begin="[", between=", ", end="]"),
)
