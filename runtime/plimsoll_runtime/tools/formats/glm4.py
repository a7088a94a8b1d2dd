"""GLM 4.5 and later: a name, then keys and values in tags, values as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import SpecialId, Wrapping, marked, one_name, spaced, text, wrapped
from plimsoll_runtime.tools.output_parser import MOST_NAME, CallFormat, Calls, Style
from plimsoll_runtime.tools.stream_reader import Page, Reading, blanks, expect, until
from plimsoll_runtime.tools.text_arguments import Fields, Texts, arguments_of

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


def _write(tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
    """Return the grammar. Keys must be in the order of the schema."""
    texts = Texts(special_id)
    calls = [_call(tool, texts, special_id, required=required) for tool in tools]
    wrapping = Wrapping(marker=_CALL, end="\n", close=_CALL_END, gap="\n")
    begins = [f"{one_name(tools)}[\n<]"]
    return texts.rules + wrapped(calls, wrapping, begins, special_id, required=required, parallel=parallel)


def _call(tool: Tool, texts: Texts, special_id: SpecialId, *, required: bool) -> str:
    key, key_end, value = (marked(marker, special_id) for marker in (_KEY, _KEY_END, _VALUE))
    line = text("\n")
    parts = [spaced(tool.name, required=required)]
    for argument in arguments_of(tool):
        name = f"{line} {key} {text(argument.name)} {key_end}"
        whole = f"{name} {line} {value} {texts.value(argument, _VALUE_END)}"
        parts.append(whole if argument.required else f"({whole})?")
    return " ".join(parts)


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    name, end = yield from until(page, _KEY, _CALL_END, most=MOST_NAME)
    fields = Fields(calls, calls.tool(name.strip()))
    yield from fields.begin()
    while end == _KEY:
        key, _ = yield from until(page, _KEY_END, most=MOST_NAME)
        yield from blanks(page)
        yield from expect(page, _VALUE)
        yield from fields.field(page, key.strip(), _VALUE_END)
        yield from blanks(page)
        end = yield from expect(page, _KEY, _CALL_END)
    yield from fields.end()


GLM4 = CallFormat("glm4", True, ((_KEY,),), Style((_CALL,), _read), _write)
"""`<tool_call>f`, `<arg_key>a</arg_key>`, `<arg_value>1</arg_value>`, `</tool_call>`."""
