"""GLM 4.5 and later: a name, then keys and values in tags, values as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.answer import AnswerParser, Calls, Style
from plimsoll_runtime.tools.fields import Fields
from plimsoll_runtime.tools.grammar import SpecialId, refused
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.reading import Page, Reading, blanks, expect, until
from plimsoll_runtime.tools.sections import MOST_NAME

_CALL, _CALL_END, _KEY, _VALUE = "<tool_call>", "</tool_call>", "<arg_key>", "<arg_value>"


class Glm4:
    """`<tool_call>f`, `<arg_key>a</arg_key>`, `<arg_value>1</arg_value>`, `</tool_call>`."""

    name = "glm4"
    special = True

    def fits(self, template: str) -> bool:
        """Its tags stand there."""
        return _KEY in template

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """For one answer."""
        return AnswerParser(Style((_CALL,), _read), tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """None yet. Raises ConstraintError."""
        raise refused(self.name)


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    name, end = yield from until(page, _KEY, _CALL_END, most=MOST_NAME)
    fields = Fields(calls, calls.tool(name.strip()))
    yield from fields.begin()
    while end == _KEY:
        key, _ = yield from until(page, "</arg_key>", most=MOST_NAME)
        yield from blanks(page)
        yield from expect(page, _VALUE)
        yield from fields.field(page, key.strip(), "</arg_value>")
        yield from blanks(page)
        end = yield from expect(page, _KEY, _CALL_END)
    yield from fields.end()


FORMAT = Glm4()
