"""The answer to a request for a message: whole, or as the events of a stream."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET

from plimsoll_runtime.api.chat.reading import AnswerReader
from plimsoll_runtime.api.generating.generation import Generation
from plimsoll_runtime.api.generating.pieces import Piece
from plimsoll_runtime.api.generating.usage import UsageMeter
from plimsoll_runtime.api.messages.blocks import Blocks
from plimsoll_runtime.api.schemas.message_events import (
    Content,
    Event,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Stopped,
    ThinkingTokens,
)
from plimsoll_runtime.api.schemas.messages import MessagesRequest


class MessageAnswers:
    """The one answer to a request. Of one for no token at all nothing is told but the usage."""

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
        """Take what a step added to the whole."""
        self._push(piece)

    def whole(self) -> MessageAnswer:
        """All of it."""
        stopped = self._stopped()
        return self._message(self._blocks.whole(), stopped.stop_reason, stopped.stop_sequence)

    def events(self, piece: Piece) -> list[Event]:
        """What a step adds to a stream."""
        events: list[Event] = [] if self._reader.begun else [MessageStart(self._message([], None, None))]
        events += self._push(piece)
        if piece.delta.finish_reason is not None:
            events.append(MessageDelta(self._stopped(), self._usage()))
        return events

    def last(self) -> list[Event]:
        """What ends a stream."""
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
        """Why it ended, in Anthropic's words. What ends every answer of the model is no stop sequence of the client."""
        reader, stop = self._reader, self._reader.stop_reason
        if not self._body.max_tokens:
            return Stopped("max_tokens", None)
        if isinstance(stop, str) and stop in self._body.stop_sequences:
            return Stopped("stop_sequence", stop)
        if reader.finish_reason == "length":
            used_up = self._meter.completion_tokens >= self._body.max_tokens
            return Stopped("max_tokens" if used_up else "model_context_window_exceeded", None)
        return Stopped("tool_use" if reader.ends_by_calls else "end_turn", None)
