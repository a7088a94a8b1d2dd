"""The format of gpt-oss: reasoning is in messages of the channel `analysis`, the output in one of the channel
`final`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll_runtime.reasoning.base import Marks
from plimsoll_runtime.tools.base import Reasoning, Text
from plimsoll_runtime.tools.formats.harmony import (
    CALL,
    CHANNEL,
    END,
    MESSAGE,
    RECIPIENT,
    RETURN,
    START,
    THOUGHT,
    Header,
    header,
)
from plimsoll_runtime.tools.stream_reader import Ended, NoCall, Page, PartReader, Reading, ahead, before, either, given

_ENDS = (END, RETURN, CALL)
_BREAK = "\n\n"
"""Separator of two messages that are returned as one text."""


class Harmony:
    """Removes headers and end marks, except those of function calls, which the tool-call format parses."""

    name = "harmony"
    marks = Marks(
        begin=f"{THOUGHT}{MESSAGE}",
        end=END,
        closing=f"{END}{START}assistant{CHANNEL}",
        then=("final", "commentary"),
        anywhere=True,
        answer=(f"{CHANNEL}final", MESSAGE),
        steer=(CHANNEL, ("analysis", "final")),
    )
    efforts: Sequence[str] | None = ("low", "medium", "high")

    def fits(self, template: str) -> bool:
        return THOUGHT in template

    def opened_by(self, prompt: str) -> bool:
        """Return False: prompts end before a message's header, so never within reasoning."""
        return False

    def shown(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the message with its reasoning in `thinking`. Templates allow no content next to a tool call, so there
        the content is appended to the reasoning.
        """
        thought = message.get("reasoning_content")
        if not thought:
            return message
        rest = {key: value for key, value in message.items() if key != "reasoning_content"}
        if not rest.get("tool_calls") or not rest.get("content"):
            return {**rest, "thinking": thought}
        return {**rest, "thinking": f"{thought}{_BREAK}{rest['content']}", "content": ""}

    def parser(self, *, opened: bool) -> PartReader:
        page = Page()
        return PartReader(page, _messages(page))


def _messages(page: Page) -> Reading[None]:
    told: set[type] = set()
    marker = yield from ahead(page, START, CHANNEL, RECIPIENT)  # the prompt may contain the start of the header
    while True:
        if marker in (START, CHANNEL, RECIPIENT):
            yield from _message(page, marker, told)
        page.keep()
        while (yield from before(page, START, CHANNEL, *_ENDS)):
            yield from given(page)
        if page.is_over():
            return
        marker = yield from either(page, START, CHANNEL, *_ENDS)


def _message(page: Page, marker: str, told: set[type]) -> Reading[None]:
    try:
        found = yield from header(page, marker)
    except Ended:
        page.at = len(page.text)
        return
    except NoCall:
        yield from given(page)
        return
    page.keep()
    if found.function is not None:
        yield Text(found.text)
        yield from _body(page, Text)
        if not page.is_over():
            yield Text((yield from either(page, *_ENDS)) or END)
        return
    kind = _kind(found)
    if kind in told:
        yield kind(_BREAK)
    told.add(kind)
    yield from _body(page, kind)


def _kind(found: Header) -> type[Reasoning] | type[Text]:
    """Return Reasoning for the analysis channel and for messages to the model's built-in tools, else Text."""
    return Reasoning if found.channel == "analysis" or found.recipient else Text


def _body(page: Page, kind: type[Reasoning] | type[Text]) -> Reading[None]:
    while piece := (yield from before(page, START, CHANNEL, *_ENDS)):
        page.keep()
        yield kind(piece)


FORMAT = Harmony()
