"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.ask import Ask
from plimsoll_runtime.api.body import parse, read_body
from plimsoll_runtime.api.choices import Choice, plan_choices
from plimsoll_runtime.api.disconnect import unless_gone
from plimsoll_runtime.api.errors import json_response
from plimsoll_runtime.api.fingerprint import FINGERPRINT
from plimsoll_runtime.api.generate import Piece, generate
from plimsoll_runtime.api.ignored import ignored_headers
from plimsoll_runtime.api.logprobs import chat_logprobs, prompt_logprobs
from plimsoll_runtime.api.offload import offload
from plimsoll_runtime.api.prompts import check_params, check_prompt, check_scores, encode_chat
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
from plimsoll_runtime.api.sse import Events, open_stream
from plimsoll_runtime.api.table import ModelTable
from plimsoll_runtime.api.tenants import salted
from plimsoll_runtime.api.usage import UsageMeter
from plimsoll_runtime.text.output import TextDelta


@dataclass(frozen=True, slots=True)
class ChatJob:
    """A validated chat, ready to run."""

    request: ChatRequest
    model: ServedModel
    choices: Sequence[Choice]
    record: RequestRecord
    created: int

    @property
    def id(self) -> str:
        """The answer's id."""
        return f"chatcmpl-{self.record.request_id}"


async def chat(request: Request, models: ModelTable, record: RequestRecord) -> Response:
    """Answer a chat, whole or as a stream. Raises ApiError, ClientGoneError."""
    data = await read_body(request)
    models.check()
    body = await unless_gone(request.receive, offload(len(data), partial(parse, data, ChatRequest)))
    ask = Ask(models, body.model, data, partial(prepare, body, record=record), record)
    headers = ignored_headers(body.messages)
    if body.stream:
        return await open_stream(request, ask.events(_chunks), record, headers)
    return json_response(await unless_gone(request.receive, ask.whole(_whole)), headers=headers)


def prepare(body: ChatRequest, model: ServedModel, record: RequestRecord) -> ChatJob:
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
    check_prompt(model, ids, body.token_limit, "messages")
    check_scores(body.choices, len(ids), params.prompt_logprobs, "prompt_logprobs")
    salt = salted(record.tenant, body.cache_salt)
    choices = plan_choices([ids], body.choices, params, salt, record.started)
    return ChatJob(body, model, choices, record, int(time.time()))


async def _whole(job: ChatJob) -> ChatAnswer:
    meter = UsageMeter(job.choices, job.record)
    answers = [_Answer(job) for _ in job.choices]
    answer = ChatAnswer(job.id, job.created, job.model.names[0], [], meter.usage(), FINGERPRINT)
    async with aclosing(generate(job.model, job.choices, job.record)) as pieces:
        async for piece in pieces:
            meter.add(piece)
            answers[piece.choice.index].add(piece)
            if piece.prompt_logprobs is not None and answer.prompt_logprobs is msgspec.UNSET:
                answer.prompt_logprobs = await _of_prompt(job, piece)
    answer.choices = [built.choice(index) for index, built in enumerate(answers)]
    answer.usage = meter.usage()
    return answer


class _Answer:
    """One answer while it grows."""

    def __init__(self, job: ChatJob) -> None:
        self._tokenizer = job.model.tokenizer
        self._texts: list[str] = []
        self._logprobs = ChatLogprobs([]) if job.request.logprobs else None
        self._last: TextDelta | None = None

    def add(self, piece: Piece) -> None:
        """Take what a step added."""
        self._last = piece.delta
        self._texts.append(piece.delta.text)
        if self._logprobs is not None:
            self._logprobs.content += chat_logprobs(piece.logprobs, self._tokenizer).content

    def choice(self, index: int) -> ChatChoice:
        """It has ended."""
        assert self._last is not None, "an answer has at least one piece"
        message = ChatAnswerMessage("assistant", "".join(self._texts))
        return ChatChoice(index, message, self._logprobs, self._last.finish_reason, self._last.stop_reason)


async def _chunks(job: ChatJob) -> Events:
    """The role of each choice first, then its text, then why it ended; the usage at the very end."""
    meter = UsageMeter(job.choices, job.record)
    begun: set[int] = set()
    async with aclosing(generate(job.model, job.choices, job.record)) as pieces:
        async for piece in pieces:
            meter.add(piece)
            index, delta = piece.choice.index, piece.delta
            if index not in begun:
                begun.add(index)
                yield await _first_chunk(job, meter, piece)
            if delta.text or (piece.logprobs and job.request.logprobs):
                logprobs = chat_logprobs(piece.logprobs, job.model.tokenizer) if job.request.logprobs else None
                yield _chunk(job, meter, _content(index, delta.text, logprobs))
            if delta.finish_reason is not None:
                stop = msgspec.UNSET if delta.stop_reason is None else delta.stop_reason
                yield _chunk(job, meter, ChatChunkChoice(index, ChatDelta(), None, delta.finish_reason, stop))
    if job.request.include_usage:
        chunk = _chunk(job, meter)
        chunk.usage = meter.usage()
        yield chunk


async def _first_chunk(job: ChatJob, meter: UsageMeter, piece: Piece) -> ChatChunk:
    chunk = _chunk(job, meter, ChatChunkChoice(piece.choice.index, ChatDelta(role="assistant", content="")))
    if piece.prompt_logprobs is not None:
        chunk.prompt_logprobs = await _of_prompt(job, piece)
    return chunk


async def _of_prompt(job: ChatJob, piece: Piece) -> PromptLogprobs:
    packed = piece.prompt_logprobs or ()
    return await offload(piece.packed_bytes, partial(prompt_logprobs, packed, job.model.tokenizer))


def _content(index: int, text: str, logprobs: ChatLogprobs | None) -> ChatChunkChoice:
    return ChatChunkChoice(index, ChatDelta(content=text), logprobs)


def _chunk(job: ChatJob, meter: UsageMeter, *choices: ChatChunkChoice) -> ChatChunk:
    usage = meter.of_event(job.request)
    return ChatChunk(job.id, job.created, job.model.names[0], list(choices), FINGERPRINT, usage)
