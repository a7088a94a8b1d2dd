"""gpt-oss: a message in the channel `commentary` whose recipient is a function, and whose text are its arguments."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.answer import AnswerParser, Calls, Style
from plimsoll_runtime.tools.grammar import SpecialId, arguments, marked, one_of, text, words_before
from plimsoll_runtime.tools.harmony import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FUNCTIONS,
    MESSAGE,
    RECIPIENT,
    START,
    THOUGHT,
    header,
)
from plimsoll_runtime.tools.json_calls import arguments as read_arguments
from plimsoll_runtime.tools.parts import Tool
from plimsoll_runtime.tools.reading import NoCall, Page, Reading, blanks, closing


class Harmony:
    """`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>`, which ends the answer.

    Thoughts and words stand in messages of their own (`reasoning/harmony.py`), and so in its grammar.
    """

    name = "harmony"
    special = True

    def fits(self, template: str) -> bool:
        """Its thoughts stand there."""
        return THOUGHT in template

    def parser(self, tools: Sequence[Tool]) -> AnswerParser:
        """For one answer. The prompt may have begun a message, so that an answer begins with the recipient."""
        return AnswerParser(Style((START, CHANNEL), _read, opening=(RECIPIENT,)), tools)

    def grammar(self, tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
        """Thoughts, and words beside them where no call is required, then a call or the answer. There is one call at
        most: models end an answer with it."""
        start, channel, message = (marked(marker, special_id) for marker in (START, CHANNEL, MESSAGE))
        constrain = marked(CONSTRAIN, special_id)
        calls = [
            f"{channel} {text(f'commentary to={FUNCTIONS}{tool.name} ')} {constrain} {text('json')} {message} "
            f"{arguments(tool)}"
            for tool in tools
        ]
        before = "analysis*" if required else "(analysis | preamble)*"
        last = "call" if required else "(call | final)"
        return (
            f"start: {before} {last}\n"
            f'analysis: {channel} "analysis" {message} words {start} "assistant"\n'
            f'preamble: {channel} "commentary" {message} words {start} "assistant"\n'
            f'final: {channel} "final" {message} TEXT\n'
            f"{words_before('words', END, special_id)}{one_of(calls)}"
        )


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    found = yield from header(page, marker)
    if found.function is None:
        raise NoCall
    tool = calls.tool(found.function)
    yield from blanks(page)
    yield from read_arguments(page, calls, tool)
    yield from closing(page, CALL, END)


HARMONY = Harmony()
