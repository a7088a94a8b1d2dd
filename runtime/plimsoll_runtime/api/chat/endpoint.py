"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import UNSET, UnsetType

from plimsoll_runtime.api.chat.conversation import converse
from plimsoll_runtime.api.chat.output_reader import AnswerReader
from plimsoll_runtime.api.endpoint import Endpoint
from plimsoll_runtime.api.generation.choices import Piece, UsageMeter
from plimsoll_runtime.api.generation.generation import Generation
from plimsoll_runtime.api.generation.logprobs import chat_logprobs, prompt_logprobs
from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.schemas.outputs import (
    INCOMPLETE,
    CallAnswer,
    CallDelta,
    ChatAnswer,
    ChatAnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    FunctionCall,
    PromptLogprobs,
)
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.text.output import TextDelta
from plimsoll_runtime.tools.base import CallBegins, Part, Reasoning, Text
from plimsoll_runtime.version import FINGERPRINT


def prepare(body: ChatRequest, model: ServedModel, record: RequestRecord) -> Generation:
    """Check a request without the engine, and return it ready to run. Raises ApiError."""
    return converse(body, model, record, partial(ChatAnswers, body))


class ChatAnswers:
    """The outputs of a chat. A stream has the role of each choice first, then its text, then its finish reason; the
    usage comes at the very end."""

    def __init__(
        self, body: ChatRequest, reader: Callable[[], AnswerReader], job: Generation, meter: UsageMeter
    ) -> None:
        self._body = body
        self._tokenizer = job.model.tokenizer
        self._meter = meter
        self._head = f"chatcmpl-{job.record.request_id}", job.record.created, job.model.names[0]
        self._choices = [
            _Choice(index, reader(), body.include_reasoning is not False) for index in range(len(job.choices))
        ]
        self._prompt_logprobs: PromptLogprobs | UnsetType = UNSET
        prompt = job.choices[0].request.prompt_token_ids
        self._prompt_ids: list[int] | UnsetType = list(prompt) if body.return_token_ids else UNSET

    def add(self, piece: Piece) -> None:
        """Add a step's output to the response."""
        choice = self._choices[piece.choice.index]
        choice.reader.push(piece.delta)
        choice.token_ids += piece.delta.token_ids
        if self._body.logprobs:
            choice.logprobs.append(chat_logprobs(piece.logprobs, self._tokenizer))
        if piece.prompt_logprobs is not None and self._prompt_logprobs is UNSET:
            self._prompt_logprobs = prompt_logprobs(piece.prompt_logprobs, self._tokenizer)

    def whole(self) -> ChatAnswer:
        """Return the complete response."""
        choices = [choice.whole() for choice in self._choices]
        if self._body.return_token_ids:
            for choice, told in zip(self._choices, choices, strict=True):
                told.token_ids = choice.token_ids
        told_of_prompt = self._prompt_logprobs, self._prompt_ids
        return ChatAnswer(*self._head, choices, self._meter.usage(), FINGERPRINT, *told_of_prompt)

    def events(self, piece: Piece) -> list[ChatChunk]:
        """Return the stream's events for a step's output."""
        choice, delta = self._choices[piece.choice.index], piece.delta
        events = []
        if not choice.reader.begun:
            events.append(self._first(piece))
        logprobs = chat_logprobs(piece.logprobs, self._tokenizer) if piece.logprobs and self._body.logprobs else None
        ids: list[int] | UnsetType = list(delta.token_ids) if self._body.return_token_ids else UNSET
        for added in choice.deltas(delta, told=logprobs is not None or bool(ids)):
            events.append(self._chunk(ChatChunkChoice(choice.index, added, logprobs, token_ids=ids)))
            logprobs, ids = None, UNSET
        if delta.finish_reason is not None:
            events += [self._chunk(ChatChunkChoice(choice.index, added)) for added in choice.cut()]
            stop = UNSET if delta.stop_reason is None else delta.stop_reason
            last = ChatChunkChoice(choice.index, ChatDelta(), None, choice.reader.finish_reason, stop)
            events.append(self._chunk(last))
        return events

    def last(self) -> list[ChatChunk]:
        """Return the event that ends a stream: the usage, if it was requested."""
        if not self._body.include_usage:
            return []
        return [ChatChunk(*self._head, [], FINGERPRINT, self._meter.usage())]

    def _first(self, piece: Piece) -> ChatChunk:
        chunk = self._chunk(ChatChunkChoice(piece.choice.index, ChatDelta(role="assistant", content="")))
        if piece.prompt_logprobs is not None:
            chunk.prompt_logprobs = prompt_logprobs(piece.prompt_logprobs, self._tokenizer)
        chunk.prompt_token_ids, self._prompt_ids = self._prompt_ids, UNSET
        return chunk

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        return ChatChunk(*self._head, [choice], FINGERPRINT, self._meter.of_event(self._body.stream_options))


@dataclass(slots=True)
class _Choice:
    """One choice while it grows. `tells_thoughts` says whether the client gets its reasoning."""

    index: int
    reader: AnswerReader
    tells_thoughts: bool
    logprobs: list[ChatLogprobs] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def deltas(self, delta: TextDelta, *, told: bool) -> Sequence[ChatDelta]:
        """Return the deltas of a step. If it has none, but log probabilities or token ids to send (`told`), return one
        delta with empty text."""
        parts = self.reader.push(delta)
        if not self.tells_thoughts:
            parts = [part for part in parts if not isinstance(part, Reasoning)]
        return [_delta(part, self.reader) for part in parts] or ([ChatDelta(content="")] if told else [])

    def cut(self) -> list[ChatDelta]:
        """Return the delta that marks tool calls whose arguments were cut off. The deprecated `function_call` has no
        mark."""
        if self.reader.old:
            return []
        marked = [
            CallDelta(index, FunctionCall(), status=INCOMPLETE)
            for index, call in enumerate(self.reader.calls)
            if call.is_cut
        ]
        return [ChatDelta(tool_calls=marked)] if marked else []

    def whole(self) -> ChatChoice:
        """Return the complete choice, after its end."""
        logprobs = ChatLogprobs([token for part in self.logprobs for token in part.content]) if self.logprobs else None
        return ChatChoice(self.index, self._message(), logprobs, self.reader.finish_reason, self.reader.stop_reason)

    def _message(self) -> ChatAnswerMessage:
        message = ChatAnswerMessage("assistant", self.reader.words)
        if self.reader.thoughts and self.tells_thoughts:
            message.reasoning_content = self.reader.thoughts
        if not self.reader.calls:
            return message
        message.content = message.content or None
        calls = [
            CallAnswer(
                call.id,
                "function",
                FunctionCall(call.name, "".join(call.arguments)),
                INCOMPLETE if call.is_cut else UNSET,
            )
            for call in self.reader.calls
        ]
        if self.reader.old:
            message.function_call = calls[0].function
        else:
            message.tool_calls = calls
        return message


def _delta(part: Part, reader: AnswerReader) -> ChatDelta:
    """Return a part of an output as a delta."""
    if isinstance(part, Text):
        return ChatDelta(content=part.text)
    if isinstance(part, Reasoning):
        return ChatDelta(reasoning_content=part.text)
    function = FunctionCall(part.name) if isinstance(part, CallBegins) else FunctionCall(arguments=part.text)
    if reader.old:
        return ChatDelta(function_call=function)
    added = CallDelta(part.index, function)
    if isinstance(part, CallBegins):
        added.id, added.type = reader.calls[part.index].id, "function"
    return ChatDelta(tool_calls=[added])


chat = Endpoint(ChatRequest, prepare)
