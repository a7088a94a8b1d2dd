"""The content of one answer in Anthropic's form: blocks, which grow one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from plimsoll_runtime.api.chat.reading import AnswerReader
from plimsoll_runtime.api.schemas.message_events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    BlockText,
    BlockThinking,
    BlockToolUse,
    Content,
    Event,
    MoreInput,
    MoreSignature,
    MoreText,
    MoreThinking,
)
from plimsoll_runtime.tools.arguments import beginning_of
from plimsoll_runtime.tools.base import Arguments, CallBegins, Part, Reasoning, Text


@dataclass(slots=True)
class _Block:
    """One of them: `begun` is what it was at first."""

    begun: Content
    pieces: list[str] = field(default_factory=list)

    def more(self, text: str) -> MoreText | MoreThinking | MoreInput:
        """Take more of it; how a stream says so."""
        self.pieces.append(text)
        match self.begun:
            case BlockText():
                return MoreText(text)
            case BlockThinking():
                return MoreThinking(text)
            case BlockToolUse():
                return MoreInput(text)

    @property
    def text(self) -> str:
        """All of it, as text."""
        return "".join(self.pieces)

    def whole(self, *, tells_thoughts: bool) -> Content:
        """All of it. Of a thought that is not told there is the signature alone."""
        match self.begun:
            case BlockText():
                return BlockText(self.text)
            case BlockThinking():
                return BlockThinking(self.text if tells_thoughts else "", signature_of(self.text))
            case BlockToolUse(id=call_id, name=name):
                return BlockToolUse(call_id, name, _object(self.text))


class Blocks:
    """Those of an answer while it grows. White space between blocks is none of them.

    With `tells_thoughts` off, a thought is a block without its text.
    """

    def __init__(self, reader: AnswerReader, *, tells_thoughts: bool = True) -> None:
        self._reader = reader
        self._tells_thoughts = tells_thoughts
        self._blocks: list[_Block] = []
        self._is_open = False
        self._white = ""

    def push(self, parts: Sequence[Part]) -> list[Event]:
        """What more of the answer adds to a stream."""
        events: list[Event] = []
        for part in parts:
            if isinstance(part, Text):
                events += self._text(part.text)
            elif isinstance(part, Reasoning):
                events += self._thought(part.text)
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
        return [block.whole(tells_thoughts=self._tells_thoughts) for block in self._blocks]

    def _thought(self, text: str) -> list[Event]:
        thinks = self._is_open and isinstance(self._blocks[-1].begun, BlockThinking)
        events = [] if thinks else self._begin(BlockThinking("", ""))
        more = self._more(text)
        return [*events, more] if self._tells_thoughts else events

    def _text(self, text: str) -> list[Event]:
        if self._is_open and isinstance(self._blocks[-1].begun, BlockText):
            return [self._more(text)]
        self._white += text
        return self._begin_text(self._white) if self._white.strip() else []

    def _begin_text(self, text: str) -> list[Event]:
        return [*self._begin(BlockText("")), self._more(text)]

    def _begin(self, block: Content) -> list[Event]:
        events = self._end()
        self._white, self._is_open = "", True
        self._blocks.append(_Block(block))
        return [*events, BlockStart(len(self._blocks) - 1, block)]

    def _more(self, text: str) -> BlockDelta:
        return BlockDelta(len(self._blocks) - 1, self._blocks[-1].more(text))

    def _end(self) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        index, last = len(self._blocks) - 1, self._blocks[-1]
        signed: list[Event] = []
        if isinstance(last.begun, BlockThinking):
            signed.append(BlockDelta(index, MoreSignature(signature_of(last.text))))
        return [*signed, BlockStop(index)]


def _object(text: str) -> dict[str, Any]:
    """A call's input. Of one that was cut off it is what can be read of its beginning."""
    return beginning_of(text) or {}


def signature_of(thought: str) -> str:
    """What stands for a thought with clients that want a signature."""
    return blake2b(thought.encode(), digest_size=24).hexdigest()
