"""Phi-4 mini: a list of objects after `functools`, or between `<|tool_call|>` and `<|/tool_call|>`."""

from __future__ import annotations

from plimsoll_runtime.tools.grammar import Wrapping
from plimsoll_runtime.tools.json_calls import call_objects, json_format
from plimsoll_runtime.tools.output_parser import Calls, Style
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, closing, peek


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    if marker.endswith("["):
        page.at -= 1
    yield from blanks(page)
    yield from peek(page)
    yield from call_objects(page, calls)
    yield from closing(page, "<|/tool_call|>")


PHI4 = json_format(
    name="phi4",
    special=True,
    signs=(("functools",), ("<|/tool|>",), ("<|/tool_call|>",)),
    style=Style(("<|tool_call|>", "functools["), _read),
    wrapping=Wrapping(marker="<|tool_call|>", begin="[", between=", ", end="]", close="<|/tool_call|>"),
)
