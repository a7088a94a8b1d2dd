"""Nemotron Nano 2: `<TOOLCALL>` around a list of objects with names and arguments."""

from __future__ import annotations

from plimsoll_runtime.tools.grammar import Wrapping
from plimsoll_runtime.tools.json_calls import call_objects, json_format
from plimsoll_runtime.tools.output_parser import Calls, Style
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, closing

_BEGIN, _END = "<TOOLCALL>", "</TOOLCALL>"


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    yield from blanks(page)
    yield from call_objects(page, calls)
    yield from closing(page, _END)


NEMOTRON = json_format(
    name="nemotron",
    special=False,
    signs=((_BEGIN,),),
    style=Style((_BEGIN,), _read),
    wrapping=Wrapping(marker=_BEGIN, begin="[", between=", ", end="]", close=_END),
)
