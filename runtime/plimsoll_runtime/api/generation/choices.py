"""The choices of an HTTP request: plans an engine request for each prompt and choice, merges their outputs, counts
usage and maps engine errors."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from msgspec import UNSET, UnsetType

from plimsoll_runtime.api.generation.prompts import check_prompt, check_scores
from plimsoll_runtime.api.http.deadlines import too_late
from plimsoll_runtime.api.http.errors import ApiError, unavailable
from plimsoll_runtime.api.schemas.outputs import CompletionTokensDetails, PromptTokensDetails, Usage
from plimsoll_runtime.api.schemas.sampling import StreamOptions
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.server.credentials import salted
from plimsoll_runtime.api.telemetry.request_content import MOST_BYTES
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.engine.protocol.messages import (
    AddRequest,
    LogprobEntry,
    Mark,
    MarkKind,
    RequestContext,
    RequestOutput,
)
from plimsoll_runtime.engine.protocol.prompt import Prompt
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import EngineDeadError, UsageError
from plimsoll_runtime.text.output import OutputText, TextDelta
from plimsoll_runtime.text.reasoning_budget import ReasoningTracker

MAX_SEQUENCES = 4096
"""Most choices of one HTTP request: prompts times n."""

_PROCESS = uuid.uuid4().hex
_numbers = itertools.count()


def new_engine_id() -> str:
    """Return a unique prefix for a request's ids in the engine. A UUID for each request cost as much time as all of
    `plan_choices`."""
    return f"{_PROCESS}-{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice to generate: its `index` in the response, and the number of its `prompt` in the request."""

    index: int
    prompt: int
    request: AddRequest

    def kept_to(self, constraint: Constraint | None) -> Choice:
        """Return the choice with another constraint, or with none."""
        params = msgspec.structs.replace(self.request.context.params, constraint=constraint)
        context = msgspec.structs.replace(self.request.context, params=params)
        return Choice(self.index, self.prompt, msgspec.structs.replace(self.request, context=context))


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a request asks of the engine: `n` choices for each of its prompts. `max_tokens` is the client's limit for
    each choice, None if the model decides. `field` is the request's field with the prompts, `scores_field` the one
    that asks for their log probabilities."""

    prompts: Sequence[list[int]]
    params: SamplingParams
    field: str
    n: int = 1
    max_tokens: int | None = None
    cache_salt: str | None = None
    scores_field: str = "prompt_logprobs"


def plan_choices(model: ServedModel, wanted: GenerationRequest, record: RequestRecord) -> list[Choice]:
    """Return all choices of a request, in the order of their index. With a seed, choice i (from 0) of each prompt gets
    the seed plus i.

    Deadlines count from the request's arrival. Engine ids do not contain the client's request id, which may not be
    unique. Raises ApiError if the model cannot take the prompts, or if there are too many choices or scores.
    """
    prompts, n, params = wanted.prompts, wanted.n, wanted.params
    for prompt in prompts:
        check_prompt(model, prompt, wanted.max_tokens, wanted.field)
    check_scores(n, sum(map(len, prompts)), params.prompt_logprobs, wanted.scores_field)
    if len(prompts) * n > MAX_SEQUENCES:
        raise ApiError(
            f"{len(prompts)} prompts times n = {n} are more than the limit of {MAX_SEQUENCES} choices; send fewer.",
            param="n",
            code="invalid_value",
        )
    record.choices, record.max_tokens = n, wanted.max_tokens
    if record.content is not None:
        for prompt in prompts:
            if record.content.wants_prompt:
                record.content.add_prompt(model.tokenizer.decode(prompt[:MOST_BYTES]))
    engine_id, salt, arrived = new_engine_id(), salted(record.tenant, wanted.cache_salt), int(record.started * 1e9)
    choices = []
    for number, shared in enumerate(map(Prompt, prompts)):
        for turn in range(n):
            index = number * n + turn
            context = RequestContext(params, params.output_seed(turn), salt, arrived)
            added = AddRequest(f"{engine_id}-{index}", shared, context, shares_prompt=n > 1)
            record.enters_engine(added.request_id)
            choices.append(Choice(index, number, added))
    return choices


def check_output(output: RequestOutput) -> None:
    """Raise ApiError if the engine has ended the request with an error."""
    if output.finish_reason == "deadline":
        raise too_late(output.error or "its deadline has passed")
    if output.finish_reason == "unavailable":
        raise unavailable(f"The engine cannot compute the request now: {output.error}.")
    if output.error is not None:
        raise failed(output.error)


def failed(reason: str = "the engine ended the request without output") -> ApiError:
    """Return the error (500) for a request that the engine ended early."""
    return ApiError(
        f"The engine could not complete the request: {reason}.",
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        code="engine_error",
    )


@contextmanager
def as_api_errors() -> Iterator[None]:
    """In the block, raise ApiError instead of EngineDeadError (500; the server ends soon after) and UsageError
    (400)."""
    try:
        yield
    except EngineDeadError as error:
        message = f"the engine died: {error}"
        raise ApiError(message, status=HTTPStatus.INTERNAL_SERVER_ERROR, code="engine_died") from error
    except UsageError as error:
        raise ApiError(f"The request cannot be served: {error}.", code="invalid_value") from error


@dataclass(frozen=True, slots=True)
class Piece:
    """The text and tokens that one step adds to one choice. `logprobs` has an entry for each of the delta's tokens if
    requested; `prompt_logprobs` has packed entries, for `unpack`."""

    choice: Choice
    delta: TextDelta
    logprobs: Sequence[LogprobEntry] = ()
    prompt_logprobs: Sequence[bytes] | None = None
    cached_tokens: int = 0

    @property
    def packed_bytes(self) -> int:
        """Size of the prompt's packed log probabilities."""
        return sum(map(len, self.prompt_logprobs or ()))


def all_pieces(model: ServedModel, choices: Sequence[Choice], record: RequestRecord) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of all choices as they arrive. Closing it aborts what is still running. Raises ApiError,
    EngineDeadError, UsageError."""
    return _of_one(model, choices[0], record) if len(choices) == 1 else _merged(model, choices, record)


async def _of_one(model: ServedModel, choice: Choice, record: RequestRecord) -> AsyncGenerator[Piece, None]:
    text = OutputText(choice.request.context.params, model.tokenizer)
    async with aclosing(model.engine.generate(choice.request)) as outputs:
        async for output in outputs:
            if output.marks:
                record.marked(choice.index, output.marks)
            check_output(output)
            started = time.perf_counter()
            delta = text.push(output)
            record.text_seconds += time.perf_counter() - started
            if delta.finish_reason is not None and output.finish_reason is None:
                # A stop text: the engine is told to end it, and sends no mark of that.
                record.marked(choice.index, [Mark(MarkKind.FINISHED, time.monotonic_ns())])
            yield Piece(
                choice,
                delta,
                output.logprobs[: len(delta.token_ids)],
                output.prompt_logprobs,
                output.cached_tokens,
            )
            if delta.finish_reason is not None:
                return
    raise failed()


async def _merged(model: ServedModel, choices: Sequence[Choice], record: RequestRecord) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of several choices; a task for each choice puts them into one queue."""
    queue: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()

    async def pump(choice: Choice) -> None:
        async with aclosing(_of_one(model, choice, record)) as pieces:
            async for piece in pieces:
                queue.put_nowait(piece)

    def ended(task: asyncio.Task[None]) -> None:
        queue.put_nowait(asyncio.CancelledError() if task.cancelled() else task.exception())

    pumps = [asyncio.create_task(pump(choice)) for choice in choices]
    for task in pumps:
        task.add_done_callback(ended)
    try:
        running = len(pumps)
        while running:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


class UsageMeter:
    """Counts the tokens of one request. A prompt counts once, however many choices it has. If output is not `counted`,
    because a request wants no output (0 tokens), its completion tokens stay 0."""

    def __init__(self, choices: Sequence[Choice], spell: Callable[[int], bytes], *, counted: bool = True) -> None:
        """`spell` returns a token's bytes, by which reasoning is recognised."""
        self._first = {c.prompt: c.index for c in reversed(choices)}
        self._counted = counted
        self.prompt_tokens = sum(len(c.request.prompt_token_ids) for c in choices if self._first[c.prompt] == c.index)
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._thoughts = {
            c.index: ReasoningTracker(c.request.context.params.thought, spell)
            for c in choices
            if c.request.context.params.thought is not None and counted
        }

    @property
    def reasoning_tokens(self) -> int | None:
        """How many generated tokens were reasoning and its markers; None if the model writes no reasoning."""
        return sum(thoughts.tokens for thoughts in self._thoughts.values()) if self._thoughts else None

    def add(self, piece: Piece) -> None:
        """Count a piece."""
        if self._counted:
            self.completion_tokens += len(piece.delta.token_ids)
        if (thoughts := self._thoughts.get(piece.choice.index)) is not None:
            for token in piece.delta.token_ids:
                thoughts.take(token)
        if self._first[piece.choice.prompt] == piece.choice.index:
            self.cached_tokens += piece.cached_tokens

    def of_event(self, options: StreamOptions | None) -> Usage | UnsetType | None:
        """Return the `usage` field of a stream's event before the last: unset without `include_usage`; with it null, or
        the usage so far if `continuous_usage_stats`. (As in vLLM, that one has an effect only with `include_usage`.)"""
        if options is None or not options.include_usage:
            return UNSET
        return self.usage() if options.continuous_usage_stats else None

    def usage(self) -> Usage:
        """Return the usage so far."""
        return Usage(
            self.prompt_tokens,
            self.completion_tokens,
            self.prompt_tokens + self.completion_tokens,
            PromptTokensDetails(self.cached_tokens),
            UNSET if self.reasoning_tokens is None else CompletionTokensDetails(self.reasoning_tokens),
        )
