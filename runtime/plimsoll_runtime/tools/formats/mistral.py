"""Mistral: `[TOOL_CALLS]` before a list of objects or, in newer models, before each name, with `[ARGS]` before its
arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import (
    OBJECT_OR_LIST,
    SpecialId,
    answers,
    arguments,
    escaped,
    lead,
    marked,
    named,
    one_name,
    one_of,
    spaced,
    text,
)
from plimsoll_runtime.tools.json_calls import arguments as read_arguments
from plimsoll_runtime.tools.json_calls import call_objects
from plimsoll_runtime.tools.output_parser import MOST_NAME, CallFormat, Calls, Style
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, peek, until

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def _write(tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
    """Return the grammar: a list of objects, or names with arguments, because models know one of these forms."""
    if special_id(_ARGUMENTS) is None:
        heads = [spaced(f"{tool.name}{_ARGUMENTS}", required=required) for tool in tools]
    else:
        heads = [f"{spaced(tool.name, required=required)} {marked(_ARGUMENTS, special_id)}" for tool in tools]
    plain = "".join(f"plain_{i}: {head} {arguments(tools[i])}\n" for i, head in enumerate(heads))
    begin = text("[") if required else lead("[")
    listed = f'{begin} call (", " call)* "]"' if parallel else f'{begin} call "]"'
    inner = " | ".join((listed, *(f"plain_{index}" for index in range(len(tools)))))
    rules = f"inner: {inner}\n{plain}{one_of(named(tools, 'arguments'))}"
    ends = "|".join(map(escaped, (_ARGUMENTS, _ID, "{")))
    begins = [OBJECT_OR_LIST, f"{one_name(tools)}({ends})"]
    return answers(rules, _CALLS, begins, special_id, required=required, again=parallel)


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    yield from blanks(page)
    if (yield from peek(page)) in "[{":
        yield from call_objects(page, calls)
        return
    name, end = yield from until(page, _ID, _ARGUMENTS, "{", most=MOST_NAME)
    if end == _ID:
        _, end = yield from until(page, _ARGUMENTS, "{", most=MOST_NAME)
    if end == "{":
        page.at -= 1
    tool = calls.tool(name.strip())
    yield from blanks(page)
    yield from read_arguments(page, calls, tool)


MISTRAL = CallFormat("mistral", True, ((_CALLS,),), Style((_CALLS,), _read), _write)
"""`[TOOL_CALLS][{"name": "f", "arguments": {...}}]` and `[TOOL_CALLS]f[ARGS]{...}`."""
