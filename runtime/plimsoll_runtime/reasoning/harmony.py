"""gpt-oss: thoughts are messages in the channel `analysis`, the answer is one in `final`."""

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
"""Between two messages that are told as one text."""


class Harmony:
    """Headers and ends are left out, but those of calls of functions, which the format of tools reads."""

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
        """Its thoughts stand there."""
        return THOUGHT in template

    def opened_by(self, prompt: str) -> bool:
        """Prompts end before a message's header, and so in no thought."""
        return False

    def shown(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Templates know thoughts as `thinking`, and take no words beside a call: those are part of the thought."""
        thought = message.get("reasoning_content")
        if not thought:
            return message
        rest = {key: value for key, value in message.items() if key != "reasoning_content"}
        if not rest.get("tool_calls") or not rest.get("content"):
            return {**rest, "thinking": thought}
        return {**rest, "thinking": f"{thought}{_BREAK}{rest['content']}", "content": ""}

    def parser(self, *, opened: bool) -> PartReader:
        """For one answer."""
        page = Page()
        return PartReader(page, _messages(page))


def _messages(page: Page) -> Reading[None]:
    told: set[type] = set()
    marker = yield from ahead(page, START, CHANNEL, RECIPIENT)  # the prompt may have begun the header
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
    """What is said to tools of the model's own is part of its thoughts."""
    return Reasoning if found.channel == "analysis" or found.recipient else Text


def _body(page: Page, kind: type[Reasoning] | type[Text]) -> Reading[None]:
    while piece := (yield from before(page, START, CHANNEL, *_ENDS)):
        page.keep()
        yield kind(piece)


FORMAT = Harmony()
