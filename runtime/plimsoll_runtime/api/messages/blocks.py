"""The content of one answer in Anthropic's form: blocks, which grow one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json

from plimsoll_runtime.api.reading import AnswerReader
from plimsoll_runtime.api.schemas.message_events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    BlockText,
    BlockToolUse,
    Content,
    Event,
    MoreInput,
    MoreText,
)
from plimsoll_runtime.tools.parts import Arguments, CallBegins, Part, Text


@dataclass(slots=True)
class _Block:
    """One of them: `begun` is what it was at first."""

    begun: BlockText | BlockToolUse
    pieces: list[str] = field(default_factory=list)

    def more(self, text: str) -> MoreText | MoreInput:
        """Take more of it; how a stream says so."""
        self.pieces.append(text)
        return MoreText(text) if isinstance(self.begun, BlockText) else MoreInput(text)

    def whole(self) -> Content:
        """All of it."""
        text, begun = "".join(self.pieces), self.begun
        return BlockText(text) if isinstance(begun, BlockText) else BlockToolUse(begun.id, begun.name, _object(text))


class Blocks:
    """Those of an answer while it grows. White space between blocks is none of them."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._blocks: list[_Block] = []
        self._is_open = False
        self._white = ""

    def push(self, parts: Sequence[Part]) -> list[Event]:
        """What more of the answer adds to a stream."""
        events: list[Event] = []
        for part in parts:
            if isinstance(part, Text):
                events += self._text(part.text)
            elif isinstance(part, CallBegins):
                call_id = self._reader.calls[part.index].id.removeprefix("call_")
                events += self._begin(BlockToolUse(f"toolu_{call_id}", part.name, {}))
            elif isinstance(part, Arguments):
                events.append(self._more(part.text))
        return events

    def finish(self) -> list[Event]:
        """The end of the last one. An answer of white space alone is a text all the same."""
        events = [] if self._blocks or not self._white else self._begin_text(self._white)
        return events + self._end()

    def whole(self) -> list[Content]:
        """All of them."""
        return [block.whole() for block in self._blocks]

    def _text(self, text: str) -> list[Event]:
        if self._is_open and isinstance(self._blocks[-1].begun, BlockText):
            return [self._more(text)]
        self._white += text
        return self._begin_text(self._white) if self._white.strip() else []

    def _begin_text(self, text: str) -> list[Event]:
        return [*self._begin(BlockText("")), self._more(text)]

    def _begin(self, block: BlockText | BlockToolUse) -> list[Event]:
        events = self._end()
        self._white, self._is_open = "", True
        self._blocks.append(_Block(block))
        return [*events, BlockStart(len(self._blocks) - 1, block)]

    def _more(self, text: str) -> BlockDelta:
        return BlockDelta(len(self._blocks) - 1, self._blocks[-1].more(text))

    def _end(self) -> list[Event]:
        events: list[Event] = [BlockStop(len(self._blocks) - 1)] if self._is_open else []
        self._is_open = False
        return events


def _object(text: str) -> dict[str, Any]:
    """A call's input. Of one that was cut off it is what can be read of its beginning."""
    try:
        found = from_json(text or "{}", allow_partial="trailing-strings")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def signature_of(thought: str) -> str:
    """What stands for a thought with clients that want a signature."""
    return blake2b(thought.encode(), digest_size=24).hexdigest()
