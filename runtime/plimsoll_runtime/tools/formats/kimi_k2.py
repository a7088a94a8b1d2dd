"""Kimi K2: a section of calls, each with an id that contains the name: `functions.NAME:0`."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import SpecialId, Wrapping, arguments, escaped, marked, spaced_mark, text, wrapped
from plimsoll_runtime.tools.json_calls import arguments as read_arguments
from plimsoll_runtime.tools.output_parser import MOST_NAME, CallFormat, Calls, Style, section
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, closing, until

_CALLS, _CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def _write(tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
    """Return the grammar. Calls may have any numbers."""
    begin = spaced_mark(_CALL, special_id, required=required)
    middle, end = (marked(marker, special_id) for marker in (_ARGUMENTS, _CALL_END))
    calls = [
        f"{begin} {text(f'functions.{tool.name}:')} /[0-9]{{1,3}}/ {middle} {arguments(tool)} {end}" for tool in tools
    ]
    return wrapped(calls, _WRAPPING, [escaped(_CALL)], special_id, required=required, parallel=parallel)


_WRAPPING = Wrapping(marker=_CALLS, between="", close=_CALLS_END)


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    yield from section(page, calls, _read_call, begin=_CALL, end=_CALLS_END)


def _read_call(page: Page, calls: Calls) -> Reading[None]:
    identity, _ = yield from until(page, _ARGUMENTS, most=MOST_NAME)
    tool = calls.tool(identity.strip().removeprefix("functions.").rpartition(":")[0] or identity.strip())
    yield from blanks(page)
    yield from read_arguments(page, calls, tool)
    yield from closing(page, _CALL_END)


KIMI_K2 = CallFormat("kimi_k2", True, ((_CALLS,),), Style((_CALLS,), _read), _write)
"""`<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>` in a section."""
