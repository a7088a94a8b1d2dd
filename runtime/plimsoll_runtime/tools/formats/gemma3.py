"""Gemma 3: calls as Python in a `tool_code` fence, or as JSON objects with a name and parameters."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import (
    SpecialId,
    Wrapping,
    escaped,
    named,
    one_name,
    one_of,
    opening,
    spaced,
    text,
    wrapped,
)
from plimsoll_runtime.tools.json_calls import call_objects
from plimsoll_runtime.tools.output_parser import CallFormat, Calls, Style, listed
from plimsoll_runtime.tools.pythonic import call, keywords
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, closing, either, expect

_FENCE, _END = "```tool_code", "```"
_PRINT = "print("


def _write(tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
    """Return the grammar: calls on the lines of one fence. If text is allowed, each call may be in `print(...)`."""
    tails, rules = keywords(tools)
    pairs = list(zip(tools, tails, strict=True))
    calls = [f"{spaced(f'{tool.name}(', required=required)} {tail}" for tool, tail in pairs]
    if not required:
        calls += [f"{spaced(f'{_PRINT}{tool.name}(')} {tail} {text(')')}" for tool, tail in pairs]
    wrapping = Wrapping(marker=_FENCE, begin="\n", between="\n", end="\n", close=_END)
    begins = [f"({escaped(_PRINT)})?{one_name(tools)}\\("]
    return rules + wrapped(calls, wrapping, begins, special_id, required=required, parallel=parallel)


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    while True:
        yield from blanks(page)
        if (yield from either(page, _END)):
            return
        around = yield from either(page, _PRINT, "[")
        if around == "[":
            yield from listed(page, calls, call)
        else:
            yield from call(page, calls)
            page.keep()
            yield from blanks(page)
            if around == _PRINT:
                yield from expect(page, ")")
        page.keep()


GEMMA3 = CallFormat("gemma3", False, (("tool_code",),), Style((_FENCE,), _read), _write)
"""A `tool_code` fence with one call per line: plain, in `print(...)`, or in a list."""

_FENCES = ("```json", "```tool_call", "```tool_code")


def _write_json(tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
    """Return the grammar: bare objects on lines. Other text must not start with an object that names a tool."""
    more = r' ("\n" call)*' if parallel else ""
    rules = f"calls: call{more}\n{one_of(named(tools, 'parameters', required=required))}"
    return opening(rules, [rf'\{{"name": "{one_name(tools)}"'], required=required)


def _read_json(page: Page, calls: Calls, marker: str) -> Reading[None]:
    if marker in ("{", "["):
        page.at -= 1
        yield from call_objects(page, calls)
        return
    yield from blanks(page)
    yield from call_objects(page, calls)
    yield from closing(page, "```")


GEMMA3_JSON = CallFormat(
    "gemma3_json",
    False,
    (("<start_of_turn>", "parameters"),),
    Style(_FENCES, _read_json, opening=("{", "[")),
    _write_json,
    ("[func_name1(",),
)
"""`{"name": "f", "parameters": {...}}` or a list of them, at the start of the output or in a fence anywhere."""
