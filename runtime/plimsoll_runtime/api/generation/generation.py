"""The job of every endpoint that generates: it checks constraints, runs the choices, and passes their pieces to the
endpoint's `Answers`.
"""

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
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
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
    """See to it that the model's engine can take requests with a constraint, which stands in the field `param`, and
    with a budget of thoughts. Raises ApiError for what cannot be kept to.
    """
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
    """All answers to one request while they grow, in an endpoint's own form: a whole, or a stream's events.

    They are made on the event loop, but of a piece with many log probabilities of its prompt in a thread.
    """

    def add(self, piece: Piece) -> None:
        """Take what a step added to the whole."""

    def whole(self) -> msgspec.Struct:
        """All of them, once each has ended."""

    def events(self, piece: Piece) -> Sequence[msgspec.Struct]:
        """What a step adds to a stream."""

    def last(self) -> Sequence[msgspec.Struct]:
        """What ends a stream."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A validated request whose answers are generated, ready to run. `form` begins the answers, which may tell what the
    meter has counted by then. The tokens of answers that are not `counted` are not told. `constrained_by` is the field
    of the body that says what answers are to be kept to, where one does. `instead` gives what else they may be kept to
    where that cannot be enforced: the first that can be enforced is taken, and the request refused where none can.
    """

    model: ServedModel
    choices: Sequence[Choice]
    record: RequestRecord
    form: Callable[[Generation, UsageMeter], Answers]
    constrained_by: str = "response_format"
    counted: bool = True
    instead: Callable[[], Iterable[EnforcedSchema]] = tuple

    async def whole(self) -> msgspec.Struct:
        """The answers as one. Raises ApiError."""
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
        """The answers as events of a stream. Closing it aborts what still runs. Raises ApiError."""
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
        """All pieces of all choices as they come. Closing it aborts what still runs. Raises ApiError."""
        model, record = self.model, self.record
        record.prompt_tokens = meter.prompt_tokens
        choices = await self._admitted()
        pieces = all_pieces(model, choices, record)
        with as_api_errors(), model.room.take(*_seats(choices)) as seats:
            async with aclosing(pieces):
                async for piece in pieces:
                    seats.leave(piece.choice.index)
                    record.saw(piece.choice.index, len(piece.delta.token_ids), time.monotonic())
                    meter.add(piece)
                    record.cached_tokens = meter.cached_tokens
                    if piece.delta.finish_reason is not None:
                        record.finished(piece.delta.finish_reason)
                    yield piece

    async def _admitted(self) -> Sequence[Choice]:
        """The choices as the engine takes them. Raises ApiError for what cannot be kept to."""
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
    """Which prompt each answer is made of, and how many tokens each prompt has."""
    return {c.index: c.prompt for c in choices}, {c.prompt: len(c.request.prompt_token_ids) for c in choices}
