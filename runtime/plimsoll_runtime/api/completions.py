"""POST /v1/completions: the legacy interface, still the one for scoring prompts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.ask import Ask
from plimsoll_runtime.api.body import Head, read_body, read_head, read_rest
from plimsoll_runtime.api.choices import Choice, plan_choices
from plimsoll_runtime.api.disconnect import unless_gone
from plimsoll_runtime.api.errors import json_response
from plimsoll_runtime.api.fingerprint import FINGERPRINT
from plimsoll_runtime.api.generate import Piece, generate
from plimsoll_runtime.api.logprobs import CompletionLogprobsBuilder, joined, prompt_logprobs
from plimsoll_runtime.api.offload import offload
from plimsoll_runtime.api.prompts import check_params, check_prompt, check_scores, encode_text
from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.schemas.answers import CompletionAnswer, CompletionChoice, CompletionLogprobs
from plimsoll_runtime.api.schemas.completions import CompletionRequest, Prompt
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.api.sse import Events, open_stream
from plimsoll_runtime.api.table import ModelTable
from plimsoll_runtime.api.tenants import salted
from plimsoll_runtime.api.usage import UsageMeter


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """A validated request, ready to run. `echoes` has each prompt's text where it is to be echoed."""

    request: CompletionRequest
    model: ServedModel
    choices: Sequence[Choice]
    echoes: Sequence[str]
    record: RequestRecord
    created: int

    @property
    def scores_only(self) -> bool:
        """Whether no answer is wanted (max_tokens 0): the engine still makes one token, which is dropped."""
        return self.request.token_limit == 0

    def answer(self, choices: list[CompletionChoice]) -> CompletionAnswer:
        """An answer, or an event of a stream, with these choices."""
        name = self.model.names[0]
        return CompletionAnswer(f"cmpl-{self.record.request_id}", self.created, name, choices, FINGERPRINT)


async def completions(request: Request, models: ModelTable, record: RequestRecord) -> Response:
    """Complete every prompt, whole or as a stream. Raises ApiError, ClientGoneError."""
    data = await read_body(request)
    models.check()
    head = await unless_gone(request.receive, offload(len(data), partial(read_head, data, CompletionRequest)))
    ask = Ask(models, head.model, data, partial(prepare, data, head, record=record), record)
    if head.stream:
        return await open_stream(request, ask.events(_chunks), record)
    return json_response(await unless_gone(request.receive, ask.whole(_whole)))


def prepare(
    data: bytes | bytearray, head: Head | CompletionRequest, model: ServedModel, record: RequestRecord
) -> CompletionJob:
    """Check everything that can be known before the engine is asked. Raises ApiError."""
    body = read_rest(data, head, CompletionRequest)
    body.check()
    scored = body.logprobs if body.echo else None
    params = body.sampling_params(
        max_tokens=max(1, body.token_limit),
        logprobs=body.logprobs,
        prompt_logprobs=body.prompt_logprobs if scored is None else max(scored, body.prompt_logprobs or 0),
    )
    check_params(model, params)
    prompts = [_encode(body, model, prompt) for prompt in body.prompt]
    for ids in prompts:
        check_prompt(model, ids, body.token_limit, "prompt")
    named = "logprobs" if body.prompt_logprobs is None else "prompt_logprobs"
    check_scores(body.choices, sum(map(len, prompts)), params.prompt_logprobs, named)
    salt = salted(record.tenant, body.cache_salt)
    choices = plan_choices(prompts, body.choices, params, salt, record.started)
    echoes = [_text(model, p, ids) for p, ids in zip(body.prompt, prompts, strict=True)] if body.echo else []
    return CompletionJob(body, model, choices, echoes, record, int(time.time()))


def _encode(body: CompletionRequest, model: ServedModel, prompt: Prompt) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    return encode_text(model, prompt, add_special_tokens=body.add_special_tokens is not False, param="prompt")


def _text(model: ServedModel, prompt: Prompt, ids: Sequence[int]) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(ids)


async def _whole(job: CompletionJob) -> CompletionAnswer:
    meter = UsageMeter(job.choices, job.record)
    growing = [_Growing(job, choice) for choice in job.choices]
    parts: list[list[CompletionChoice]] = [[] for _ in job.choices]
    async with aclosing(generate(job.model, job.choices, job.record)) as pieces:
        async for piece in pieces:
            meter.add(piece, counted=not job.scores_only)
            index = piece.choice.index
            parts[index].append(await offload(piece.packed_bytes, partial(growing[index].push, piece)))
    answer = job.answer([_joined(own) for own in parts])
    answer.usage = meter.usage()
    return answer


async def _chunks(job: CompletionJob) -> Events:
    meter = UsageMeter(job.choices, job.record)
    growing = [_Growing(job, choice) for choice in job.choices]
    async with aclosing(generate(job.model, job.choices, job.record)) as pieces:
        async for piece in pieces:
            meter.add(piece, counted=not job.scores_only)
            part = await offload(piece.packed_bytes, partial(growing[piece.choice.index].push, piece))
            if part.text or part.finish_reason is not None or part.logprobs is not None:
                yield _event(job, meter, [part])
    if job.request.include_usage:
        last = _event(job, meter, [])
        last.usage = meter.usage()
        yield last


def _event(job: CompletionJob, meter: UsageMeter, choices: list[CompletionChoice]) -> CompletionAnswer:
    event = job.answer(choices)
    event.usage = meter.of_event(job.request)
    return event


class _Growing:
    """One choice while it grows: turns pieces into parts of it, the echoed prompt in front."""

    def __init__(self, job: CompletionJob, choice: Choice) -> None:
        self._job = job
        self._choice = choice
        self._echo: str | None = job.echoes[choice.prompt] if job.request.echo else None
        self._logprobs = CompletionLogprobsBuilder(
            job.model.tokenizer,
            skip_special_tokens=job.request.skip_special_tokens is not False,
            at_start=self._echo is not None,
        )

    def push(self, piece: Piece) -> CompletionChoice:
        """What a piece adds."""
        part = CompletionChoice(self._choice.index, "")
        echoed = self._echo_into(part, piece)
        if not self._job.scores_only:
            part.text += piece.delta.text
            if self._job.request.logprobs is not None:
                own = self._logprobs.answer(piece.delta.token_ids, piece.logprobs)
                part.logprobs = own if echoed is None else joined([echoed, own])
        if piece.delta.finish_reason is not None:
            part.finish_reason = "length" if self._job.scores_only else piece.delta.finish_reason
            part.stop_reason = None if self._job.scores_only else piece.delta.stop_reason
        if piece.prompt_logprobs is not None and self._job.request.prompt_logprobs is not None:
            part.prompt_logprobs = prompt_logprobs(piece.prompt_logprobs, self._job.model.tokenizer)
        return part

    def _echo_into(self, part: CompletionChoice, piece: Piece) -> CompletionLogprobs | None:
        if self._echo is None:
            return None
        part.text, self._echo = self._echo, None
        if self._job.request.logprobs is None:
            return None
        part.logprobs = self._logprobs.prompt(self._choice.request.prompt_token_ids, piece.prompt_logprobs or ())
        return part.logprobs


def _joined(parts: Sequence[CompletionChoice]) -> CompletionChoice:
    """All parts of one choice as a whole."""
    first, last = parts[0], parts[-1]
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    whole = CompletionChoice(first.index, "".join(part.text for part in parts))
    whole.logprobs = joined(logprobs) if logprobs else None
    whole.finish_reason, whole.stop_reason = last.finish_reason, last.stop_reason
    whole.prompt_logprobs = first.prompt_logprobs
    return whole
