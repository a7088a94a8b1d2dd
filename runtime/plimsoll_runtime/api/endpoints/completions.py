"""POST /v1/completions, the legacy endpoint, which can also score prompts (`echo`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import UNSET, UnsetType

from plimsoll_runtime.api.endpoint import Endpoint
from plimsoll_runtime.api.generation.choices import Choice, GenerationRequest, Piece, UsageMeter, plan_choices
from plimsoll_runtime.api.generation.generation import Generation
from plimsoll_runtime.api.generation.logprobs import CompletionLogprobsBuilder, joined, prompt_logprobs
from plimsoll_runtime.api.generation.prompts import Truncation, check_params, encode_text, truncation_of
from plimsoll_runtime.api.generation.schema_warnings import instead_of_form, set_format_warnings
from plimsoll_runtime.api.schemas.completions import CompletionRequest, Prompt
from plimsoll_runtime.api.schemas.outputs import CompletionAnswer, CompletionChoice, CompletionLogprobs, Usage
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.text.detokenizer import new_detokenizer
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.version import FINGERPRINT


@dataclass(frozen=True, slots=True)
class Echo:
    """The echoed prompt text, and for each token of the prompt the index of its first character in the text (for a text
    prompt empty if no log probabilities are requested)."""

    text: str
    starts: Sequence[int]


def echo_of_text(text: str, tokenizer: Tokenizer, *, add_special_tokens: bool) -> Echo:
    """Return the echo of a text prompt. Special tokens that the client wrote in the text are echoed."""
    return Echo(text, tokenizer.starts(text, add_special_tokens=add_special_tokens))


def echo_of_tokens(ids: Sequence[int], tokenizer: Tokenizer, *, skip_special_tokens: bool) -> Echo:
    """Return the echo of a prompt of token ids, or of a truncated prompt."""
    detokenizer = new_detokenizer(tokenizer, skip_special_tokens=skip_special_tokens, at_start=True)
    starts, pieces, length = list[int](), list[str](), 0
    for token_id in ids:
        starts.append(length)
        pieces.append(detokenizer.push(token_id))
        length += len(pieces[-1])
    return Echo("".join([*pieces, detokenizer.finish()]), starts)


def prepare(body: CompletionRequest, model: ServedModel, record: RequestRecord) -> Generation:
    """Check a request without the engine, and return it ready to run. Raises ApiError."""
    body.check()
    scored = body.logprobs if body.echo else None
    params = body.sampling_params(
        max_tokens=max(1, body.token_limit),
        logprobs=0 if body.ranks and body.logprobs is None else body.logprobs,
        prompt_logprobs=body.prompt_logprobs if scored is None else max(scored, body.prompt_logprobs or 0),
        recommended=model.recommended,
    )
    check_params(model, params)
    set_format_warnings(record, body)
    truncation = truncation_of(body, model, body.token_limit)
    record.phases.end("check")
    prompts = [truncation.ids(_encode(body, model, prompt, truncation)) for prompt in body.prompt]
    record.phases.end("tokenise")
    wanted = GenerationRequest(
        prompts,
        params,
        "prompt",
        n=body.candidates,
        max_tokens=body.token_limit,
        cache_salt=body.cache_salt,
        scores_field="logprobs" if body.prompt_logprobs is None else "prompt_logprobs",
    )
    choices = plan_choices(model, wanted, record)
    echoes = [_echo(body, model, p, ids) for p, ids in zip(body.prompt, prompts, strict=True)] if body.echo else []
    form = partial(CompletionAnswers, body, echoes)
    instead = partial(instead_of_form, body)
    return Generation(model, choices, record, form, body.constraint_field, not body.scores_only, instead)


def _encode(body: CompletionRequest, model: ServedModel, prompt: Prompt, truncation: Truncation) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    return encode_text(model, truncation.text(prompt), add_special_tokens=body.adds_special_tokens, param="prompt")


def _echo(body: CompletionRequest, model: ServedModel, prompt: Prompt, ids: Sequence[int]) -> Echo:
    if not isinstance(prompt, str) or body.truncate_prompt_tokens is not None:
        return echo_of_tokens(ids, model.tokenizer, skip_special_tokens=body.skip_special_tokens is not False)
    if body.logprobs is None:
        return Echo(prompt, ())
    return echo_of_text(prompt, model.tokenizer, add_special_tokens=body.adds_special_tokens)


@dataclass(slots=True)
class Score:
    """The mean log probability of an output, while it grows."""

    sum: float = 0.0
    tokens: int = 0

    def add(self, piece: Piece) -> None:
        """Add the log probabilities of more tokens."""
        self.sum += sum(entry.logprob for entry in piece.logprobs)
        self.tokens += len(piece.logprobs)

    @property
    def mean(self) -> float:
        """The mean log probability of all tokens."""
        return self.sum / max(1, self.tokens)


class CompletionAnswers:
    """The outputs for all prompts. Each is the concatenation of its parts, which are the events of a stream. `echoes`
    has one entry for each prompt; it is empty if prompts are not echoed."""

    def __init__(self, body: CompletionRequest, echoes: Sequence[Echo], job: Generation, meter: UsageMeter) -> None:
        self._body = body
        self._meter = meter
        self._head = f"cmpl-{job.record.request_id}", job.record.created, job.model.names[0]
        self._growing = [_Growing(body, echoes, job.model, choice) for choice in job.choices]
        self._scores = [Score() for _ in job.choices]
        self._parts: list[list[CompletionChoice]] = [[] for _ in job.choices]

    def add(self, piece: Piece) -> None:
        """Add a step's output to the response."""
        index = piece.choice.index
        self._parts[index].append(self._growing[index].push(piece))
        if self._body.ranks:
            self._scores[index].add(piece)

    def whole(self) -> CompletionAnswer:
        """Return the complete response."""
        choices = [_joined(own) for own in self._parts]
        return self._answer(self._best(choices) if self._body.ranks else choices, self._meter.usage())

    def events(self, piece: Piece) -> list[CompletionAnswer]:
        """Return the stream's events for a step's output."""
        part = self._growing[piece.choice.index].push(piece)
        if not part.text and part.finish_reason is None and part.logprobs is None and not part.token_ids:
            return []
        return [self._answer([part], self._meter.of_event(self._body.stream_options))]

    def last(self) -> list[CompletionAnswer]:
        """Return the events that end a stream."""
        return [self._answer([], self._meter.usage())] if self._body.include_usage else []

    def _best(self, choices: Sequence[CompletionChoice]) -> list[CompletionChoice]:
        """Return the `n` choices with the highest mean log probability for each prompt, the best one first, and set
        their index."""
        made, told = self._body.candidates, list[CompletionChoice]()
        for start in range(0, len(choices), made):
            ranked = sorted(choices[start : start + made], key=lambda choice: -self._scores[choice.index].mean)
            told += ranked[: self._body.choices]
        for index, choice in enumerate(told):
            choice.index = index
        return told

    def _answer(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> CompletionAnswer:
        return CompletionAnswer(*self._head, choices, FINGERPRINT, usage)


class _Growing:
    """One choice while it grows. The echoed prompt precedes its first part."""

    def __init__(self, body: CompletionRequest, echoes: Sequence[Echo], model: ServedModel, choice: Choice) -> None:
        self._body = body
        self._tokenizer = model.tokenizer
        self._choice = choice
        self._echo = echoes[choice.prompt] if echoes else None
        self._begun = False
        self._logprobs = CompletionLogprobsBuilder(
            model.tokenizer,
            skip_special_tokens=body.skip_special_tokens is not False,
            echoed=0 if self._echo is None else len(self._echo.text),
        )

    def push(self, piece: Piece) -> CompletionChoice:
        """Return the part that a piece adds. If the prompt is only scored, the one sampled token is dropped."""
        part = CompletionChoice(self._choice.index, "")
        echoed = None if self._echo is None else self._echo_into(part, piece)
        delta, scores_only = piece.delta, self._body.scores_only
        if not scores_only:
            part.text += delta.text
            if self._body.logprobs is not None:
                own = self._logprobs.answer(delta.token_ids, piece.logprobs)
                part.logprobs = own if echoed is None else joined([echoed, own])
        if delta.finish_reason is not None:
            part.finish_reason = "length" if scores_only else delta.finish_reason
            part.stop_reason = None if scores_only else delta.stop_reason
        if piece.prompt_logprobs is not None and self._body.prompt_logprobs is not None:
            part.prompt_logprobs = prompt_logprobs(piece.prompt_logprobs, self._tokenizer)
        if self._body.return_token_ids:
            part.token_ids = [] if scores_only else list(delta.token_ids)
            if not self._begun:
                part.prompt_token_ids = list(self._choice.request.prompt_token_ids)
        self._begun = True
        return part

    def _echo_into(self, part: CompletionChoice, piece: Piece) -> CompletionLogprobs | None:
        assert self._echo is not None
        echo, self._echo = self._echo, None
        part.text = echo.text
        if self._body.logprobs is not None:
            ids = self._choice.request.prompt_token_ids
            part.logprobs = self._logprobs.prompt(ids, piece.prompt_logprobs or (), echo.starts)
        return part.logprobs


def _joined(parts: Sequence[CompletionChoice]) -> CompletionChoice:
    """Return all parts of one choice as a single choice."""
    first, last = parts[0], parts[-1]
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    whole = CompletionChoice(first.index, "".join(part.text for part in parts))
    whole.logprobs = joined(logprobs) if logprobs else None
    whole.finish_reason, whole.stop_reason = last.finish_reason, last.stop_reason
    whole.prompt_logprobs, whole.prompt_token_ids = first.prompt_logprobs, first.prompt_token_ids
    if first.token_ids is not UNSET:
        whole.token_ids = [token for part in parts for token in part.token_ids or ()]
    return whole


completions = Endpoint(CompletionRequest, prepare)
