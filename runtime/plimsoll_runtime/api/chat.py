"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial

from msgspec import UNSET, UnsetType

from plimsoll_runtime.api.choices import Wanted, plan_choices
from plimsoll_runtime.api.endpoint import Endpoint
from plimsoll_runtime.api.fingerprint import FINGERPRINT
from plimsoll_runtime.api.generation import Generation
from plimsoll_runtime.api.ignored import ignored_headers
from plimsoll_runtime.api.logprobs import chat_logprobs, prompt_logprobs
from plimsoll_runtime.api.pieces import Piece
from plimsoll_runtime.api.prompts import check_params, encode_chat
from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.schemas.answers import (
    ChatAnswer,
    ChatAnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    PromptLogprobs,
)
from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.api.usage import UsageMeter
from plimsoll_runtime.text.output import TextDelta


def prepare(body: ChatRequest, model: ServedModel, record: RequestRecord) -> Generation:
    """Check everything that can be known before the engine is asked. Raises ApiError."""
    body.check()
    params = body.sampling_params(
        max_tokens=body.token_limit,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        stop=model.chat_stop,
    )
    check_params(model, params)
    ids = encode_chat(
        model,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs,
        add_special_tokens=body.add_special_tokens,
    )
    wanted = Wanted([ids], params, "messages", n=body.choices, max_tokens=body.token_limit, cache_salt=body.cache_salt)
    return Generation(
        model, plan_choices(model, wanted, record), record, partial(ChatAnswers, body), body.constraint_field
    )


class ChatAnswers:
    """The answers to a chat. In a stream the role of each comes first, then its text, then why it ended; the usage at
    the very end.
    """

    def __init__(self, body: ChatRequest, job: Generation, meter: UsageMeter) -> None:
        self._body = body
        self._tokenizer = job.model.tokenizer
        self._meter = meter
        self._head = f"chatcmpl-{job.record.request_id}", int(time.time()), job.model.names[0]
        self._choices = [_Choice(index) for index in range(len(job.choices))]
        self._prompt_logprobs: PromptLogprobs | UnsetType = UNSET

    def add(self, piece: Piece) -> None:
        """Take what a step added to the whole."""
        choice = self._choices[piece.choice.index]
        choice.last = piece.delta
        choice.texts.append(piece.delta.text)
        if self._body.logprobs:
            choice.logprobs.append(chat_logprobs(piece.logprobs, self._tokenizer))
        if piece.prompt_logprobs is not None and self._prompt_logprobs is UNSET:
            self._prompt_logprobs = prompt_logprobs(piece.prompt_logprobs, self._tokenizer)

    def whole(self) -> ChatAnswer:
        """All of them."""
        choices = [choice.whole() for choice in self._choices]
        return ChatAnswer(*self._head, choices, self._meter.usage(), FINGERPRINT, self._prompt_logprobs)

    def events(self, piece: Piece) -> list[ChatChunk]:
        """What a step adds to a stream."""
        choice, delta = self._choices[piece.choice.index], piece.delta
        events = []
        if choice.last is None:
            events.append(self._first(piece))
        choice.last = delta
        if delta.text or (piece.logprobs and self._body.logprobs):
            logprobs = chat_logprobs(piece.logprobs, self._tokenizer) if self._body.logprobs else None
            events.append(self._chunk(ChatChunkChoice(choice.index, ChatDelta(content=delta.text), logprobs)))
        if delta.finish_reason is not None:
            stop = UNSET if delta.stop_reason is None else delta.stop_reason
            events.append(self._chunk(ChatChunkChoice(choice.index, ChatDelta(), None, delta.finish_reason, stop)))
        return events

    def last(self) -> list[ChatChunk]:
        """What ends a stream."""
        if not self._body.include_usage:
            return []
        return [ChatChunk(*self._head, [], FINGERPRINT, self._meter.usage())]

    def _first(self, piece: Piece) -> ChatChunk:
        chunk = self._chunk(ChatChunkChoice(piece.choice.index, ChatDelta(role="assistant", content="")))
        if piece.prompt_logprobs is not None:
            chunk.prompt_logprobs = prompt_logprobs(piece.prompt_logprobs, self._tokenizer)
        return chunk

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        return ChatChunk(*self._head, [choice], FINGERPRINT, self._meter.of_event(self._body.stream_options))


@dataclass(slots=True)
class _Choice:
    """One answer while it grows."""

    index: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[ChatLogprobs] = field(default_factory=list)
    last: TextDelta | None = None

    def whole(self) -> ChatChoice:
        """It has ended."""
        assert self.last is not None, "an answer has at least one piece"
        message = ChatAnswerMessage("assistant", "".join(self.texts))
        logprobs = ChatLogprobs([token for part in self.logprobs for token in part.content]) if self.logprobs else None
        return ChatChoice(self.index, message, logprobs, self.last.finish_reason, self.last.stop_reason)


chat = Endpoint(ChatRequest, prepare, headers=lambda body: ignored_headers(body.messages))
