"""Llama 3.1 to 3.3: bare JSON objects joined by `;`. Llama 4: a list of calls in Python syntax."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import SpecialId, named, one_name, one_of, opening, spaced, text
from plimsoll_runtime.tools.json_calls import call_objects
from plimsoll_runtime.tools.output_parser import CallFormat, Calls, Style, listed
from plimsoll_runtime.tools.pythonic import call, keywords
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, closing, either, expect

_MARKERS = ("<|python_tag|>", "<|python_start|>")


def _write(tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
    """Return the grammar: bare objects. Other text must not start with an object that names a tool."""
    more = ' ("; " call)*' if parallel else ""
    rules = f"calls: call{more}\n{one_of(named(tools, 'parameters', required=required))}"
    return opening(rules, [rf'\{{"name": "{one_name(tools)}"'], required=required)


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    if marker == "{":
        page.at -= 1
    end = ";"
    while end == ";":
        yield from blanks(page)
        yield from call_objects(page, calls)
        page.keep()
        yield from blanks(page)
        end = yield from either(page, ";", "<|python_end|>")
    if not end:
        page.at = page.kept


LLAMA3 = CallFormat(
    "llama3",
    True,
    tuple(("parameters", head) for head in ("<|start_header_id|>", "<|header_start|>", *_MARKERS)),
    Style(_MARKERS, _read, opening=("{",)),
    _write,
)
"""`{"name": "f", "parameters": {...}}` at the start of the output, or after `<|python_tag|>` anywhere."""

_BEGIN, _END = "<|python_start|>", "<|python_end|>"


def _write_pythonic(tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
    """Return the grammar: a list at the start of the output. Other text must not start with a list that names tools."""
    tails, rules = keywords(tools)
    pairs = list(zip(tools, tails, strict=True))
    first = [f"{spaced(f'[{tool.name}(', required=required)} {tail}" for tool, tail in pairs]
    more = [f"{text(f', {tool.name}(')} {tail}" for tool, tail in pairs]
    others = " other*" if parallel else ""
    rules += f'calls: call{others} "]"\n{one_of(first)}other: {" | ".join(more)}\n'
    return opening(rules, [rf"\[{one_name(tools)}\("], required=required)


def _read_pythonic(page: Page, calls: Calls, marker: str) -> Reading[None]:
    if marker == _BEGIN:
        yield from blanks(page)
        yield from expect(page, "[")
    yield from listed(page, calls, call)
    yield from closing(page, _END)


LLAMA4_PYTHONIC = CallFormat(
    "llama4_pythonic", True, (("[func_name1(",),), Style((_BEGIN,), _read_pythonic, opening=("[",)), _write_pythonic
)
"""`[f(a=1), g(b="x")]` at the start of the output, or after `<|python_start|>` anywhere."""
