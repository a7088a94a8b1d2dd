"""The job of every endpoint that generates: checks constraints, runs the choices, and passes their pieces to the
endpoint's `Answers`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace

from plimsoll_runtime.api.generation.choices import Choice, Piece, UsageMeter, all_pieces, as_api_errors
from plimsoll_runtime.api.generation.schema_warnings import EnforcedSchema, set_warnings
from plimsoll_runtime.api.http.concurrency import offload
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.http.sse import Events
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import GENERATE, RequestRecord
from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.engine.protocol.messages import EngineInfo, Vocabulary
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.structured.checker import Checker
from plimsoll_runtime.structured.grammar import check_tokens
from plimsoll_runtime.structured.vocabulary import vocabulary_of
from plimsoll_runtime.text.tokenizer import Tokenizer

_checker = Checker()
_thread = ThreadPoolExecutor(1, thread_name_prefix="constraints")
_vocabularies: WeakKeyDictionary[Tokenizer, Vocabulary] = WeakKeyDictionary()


async def admit(model: ServedModel, params: SamplingParams, param: str) -> None:
    """Check the constraint of `params`, which comes from the body's field `param`, and send the engine the vocabulary
    that it needs for a constraint or a reasoning budget. Do nothing without either. Raises ApiError for a constraint
    that cannot be enforced."""
    constraint, thought = params.constraint, params.thought
    if constraint is None and (thought is None or thought.budget is None):
        return
    info = model.engine.info
    try:
        if constraint is not None:
            check_tokens(constraint, info.vocab_size)
        vocabulary = _vocabularies.get(model.tokenizer)
        if vocabulary is None or not (constraint is None or _checker.has_passed(constraint)):
            check = partial(_checked, model.tokenizer, info, constraint)
            vocabulary = await asyncio.get_running_loop().run_in_executor(_thread, check)
    except ConstraintError as error:
        raise invalid("thinking_budget" if constraint is None else param, str(error)) from error
    model.engine.use(vocabulary)


def _checked(tokenizer: Tokenizer, info: EngineInfo, constraint: Constraint | None) -> Vocabulary:
    if constraint is not None:
        _checker.check(constraint)
    found = _vocabularies.get(tokenizer)
    if found is None:
        found = _vocabularies[tokenizer] = vocabulary_of(tokenizer, info.vocab_size, info.eos_token_ids)
    return found


class Answers(Protocol):
    """The outputs of one request while they grow, in an endpoint's format: a complete response, or a stream's events.

    They are built on the event loop, except for pieces with many prompt log probabilities, which are built in a
    thread.
    """

    def add(self, piece: Piece) -> None:
        """Add a step's output to the response."""

    def whole(self) -> msgspec.Struct:
        """Return the complete response, after all choices have ended."""

    def events(self, piece: Piece) -> Sequence[msgspec.Struct]:
        """Return the stream's events for a step's output."""

    def last(self) -> Sequence[msgspec.Struct]:
        """Return the events that end a stream."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A validated request for generated output, ready to run. `form` creates the `Answers`, which may read the
    meter. Output that is not `counted` does not appear in the usage. `constrained_by` is the body's field with the
    constraint. If that constraint cannot be enforced, the first enforceable one of `instead` replaces it; without
    one, the request is refused."""

    model: ServedModel
    choices: Sequence[Choice]
    record: RequestRecord
    form: Callable[[Generation, UsageMeter], Answers]
    constrained_by: str = "response_format"
    counted: bool = True
    instead: Callable[[], Iterable[EnforcedSchema]] = tuple

    async def whole(self) -> msgspec.Struct:
        """Return the complete response. Raises ApiError."""
        meter = self._meter()
        answers = self.form(self, meter)
        async with aclosing(self._pieces(meter)) as pieces:
            async for piece in pieces:
                if piece.prompt_logprobs is None:
                    answers.add(piece)
                else:
                    await offload(piece.packed_bytes, partial(answers.add, piece))
        return answers.whole()

    async def events(self) -> Events:
        """Yield the events of a stream. Closing it aborts what is still running. Raises ApiError."""
        meter = self._meter()
        answers = self.form(self, meter)
        async with aclosing(self._pieces(meter)) as pieces:
            async for piece in pieces:
                if piece.prompt_logprobs is None:
                    events = answers.events(piece)
                else:
                    events = await offload(piece.packed_bytes, partial(answers.events, piece))
                for event in events:
                    yield event
        for event in answers.last():
            yield event

    def _meter(self) -> UsageMeter:
        return UsageMeter(self.choices, self.model.tokenizer.token_bytes, counted=self.counted)

    async def _pieces(self, meter: UsageMeter) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of all choices as they arrive. Closing it aborts what is still running. Raises ApiError."""
        model, record = self.model, self.record
        record.prompt_tokens = meter.prompt_tokens
        choices = await self._admitted()
        record.phases.end("constrain")
        pieces = all_pieces(model, choices, record)
        try:
            with as_api_errors(), model.room.take(*_seats(choices)) as seats:
                async with aclosing(pieces):
                    async for piece in pieces:
                        seats.leave(piece.choice.index)
                        record.saw(piece.choice.index, len(piece.delta.token_ids), time.monotonic())
                        meter.add(piece)
                        if record.content is not None:
                            record.content.add_output(piece.choice.index, piece.delta.text)
                        record.cached_tokens = meter.cached_tokens
                        if piece.delta.finish_reason is not None:
                            record.finished(piece.delta.finish_reason)
                        yield piece
        finally:
            record.phases.end(GENERATE)

    async def _admitted(self) -> Sequence[Choice]:
        """Return the choices with an enforceable constraint. Raises ApiError if there is none."""
        params = self.choices[0].request.context.params
        try:
            await admit(self.model, params, self.constrained_by)
            return self.choices
        except ApiError as error:
            refused = error
        for other in () if params.constraint is None else self.instead():
            with suppress(ApiError):
                await admit(self.model, replace(params, constraint=other.constraint), self.constrained_by)
                set_warnings(self.record, other.unenforced)
                return [choice.kept_to(other.constraint) for choice in self.choices]
        raise refused


def _seats(choices: Sequence[Choice]) -> tuple[dict[int, int], dict[int, int]]:
    """Return two maps for `QueueLimit.take`: the index of each choice to the number of its prompt, and the number of
    each prompt to its number of tokens."""
    return {c.index: c.prompt for c in choices}, {c.prompt: len(c.request.prompt_token_ids) for c in choices}
