"""The output of /v1/messages: content blocks, as one message or as events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from msgspec import UNSET

from plimsoll_runtime.api.chat.output_reader import AnswerReader
from plimsoll_runtime.api.generation.choices import Piece, UsageMeter
from plimsoll_runtime.api.generation.generation import Generation
from plimsoll_runtime.api.schemas.message_events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    BlockText,
    BlockThinking,
    BlockToolUse,
    Content,
    Event,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    MoreInput,
    MoreSignature,
    MoreText,
    Stopped,
    ThinkingDelta,
    ThinkingTokens,
)
from plimsoll_runtime.api.schemas.messages import MessagesRequest
from plimsoll_runtime.tools.arguments import beginning_of
from plimsoll_runtime.tools.base import Arguments, CallBegins, Part, Reasoning, Text


@dataclass(slots=True)
class _Block:
    """One content block; `begun` is the block as its first event in the stream shows it, without content."""

    begun: Content
    pieces: list[str] = field(default_factory=list)

    def more(self, text: str) -> MoreText | ThinkingDelta | MoreInput:
        """Append text and return the stream's delta."""
        self.pieces.append(text)
        match self.begun:
            case BlockText():
                return MoreText(text)
            case BlockThinking():
                return ThinkingDelta(text)
            case BlockToolUse():
                return MoreInput(text)

    @property
    def text(self) -> str:
        """All text of the block so far; for a tool call, its input as JSON."""
        return "".join(self.pieces)

    def whole(self, *, tells_thoughts: bool) -> Content:
        """Return the complete block. If `tells_thoughts` is off, a thinking block has only its signature."""
        match self.begun:
            case BlockText():
                return BlockText(self.text)
            case BlockThinking():
                return BlockThinking(self.text if tells_thoughts else "", signature_of(self.text))
            case BlockToolUse(id=call_id, name=name):
                # Of a call that was cut off, the input has the complete fields of its beginning.
                return BlockToolUse(call_id, name, beginning_of(self.text) or {})


class Blocks:
    """The content blocks of an output while it grows. White space between blocks is dropped.

    With `tells_thoughts` off, thinking blocks have no text.
    """

    def __init__(self, reader: AnswerReader, *, tells_thoughts: bool = True) -> None:
        self._reader = reader
        self._tells_thoughts = tells_thoughts
        self._blocks: list[_Block] = []
        self._is_open = False
        self._white = ""

    def push(self, parts: Sequence[Part]) -> list[Event]:
        """Return the stream's events for more parts of the output."""
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
        """Return the events that end the last block. An output of white space alone is a text block."""
        events = [] if self._blocks or not self._white else self._begin_text(self._white)
        return events + self._end()

    def whole(self) -> list[Content]:
        """Return all blocks."""
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


def signature_of(thought: str) -> str:
    """Return the signature of a thinking block: a hash of its text. Some clients need one; the server never checks
    it."""
    return blake2b(thought.encode(), digest_size=24).hexdigest()


class MessageAnswers:
    """The output of a request. A request for 0 tokens gets only the usage."""

    def __init__(
        self, body: MessagesRequest, new_reader: Callable[[], AnswerReader], job: Generation, meter: UsageMeter
    ) -> None:
        self._body = body
        self._meter = meter
        self._id, self._model = f"msg_{job.record.request_id}", job.model.names[0]
        self._reader = new_reader()
        omitted = getattr(body.thinking, "display", None) == "omitted"
        self._blocks = Blocks(self._reader, tells_thoughts=not omitted)

    def add(self, piece: Piece) -> None:
        """Add a step's output to the response."""
        self._push(piece)

    def whole(self) -> MessageAnswer:
        """Return the complete response."""
        stopped = self._stopped()
        return self._message(self._blocks.whole(), stopped.stop_reason, stopped.stop_sequence)

    def events(self, piece: Piece) -> list[Event]:
        """Return the stream's events for a step's output."""
        events: list[Event] = [] if self._reader.begun else [MessageStart(self._message([], None, None))]
        events += self._push(piece)
        if piece.delta.finish_reason is not None:
            events.append(MessageDelta(self._stopped(), self._usage()))
        return events

    def last(self) -> list[Event]:
        """Return the events that end a stream."""
        return [MessageStop()]

    def _push(self, piece: Piece) -> list[Event]:
        parts = self._reader.push(piece.delta)
        if not self._body.max_tokens:
            return []
        events = self._blocks.push(parts)
        return events if piece.delta.finish_reason is None else events + self._blocks.finish()

    def _message(self, content: list[Content], reason: str | None, sequence: str | None) -> MessageAnswer:
        return MessageAnswer(self._id, "assistant", self._model, content, reason, sequence, self._usage())

    def _usage(self) -> MessageUsage:
        meter = self._meter
        read, cached = meter.prompt_tokens - meter.cached_tokens, meter.cached_tokens
        thought = UNSET if meter.reasoning_tokens is None else ThinkingTokens(meter.reasoning_tokens)
        return MessageUsage(read, 0, cached, meter.completion_tokens, thought)

    def _stopped(self) -> Stopped:
        """Return why the output ended, in Anthropic's terms. Stop strings of the model itself do not count as stop
        sequences."""
        reader, stop = self._reader, self._reader.stop_reason
        if not self._body.max_tokens:
            return Stopped("max_tokens", None)
        if isinstance(stop, str) and stop in self._body.stop_sequences:
            return Stopped("stop_sequence", stop)
        if reader.finish_reason == "length":
            used_up = self._meter.completion_tokens >= self._body.max_tokens
            return Stopped("max_tokens" if used_up else "model_context_window_exceeded", None)
        return Stopped("tool_use" if reader.ends_by_calls else "end_turn", None)
