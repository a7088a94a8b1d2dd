"""Runs the choices of one HTTP request on the engine and merges what comes of them, with text and timing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus

from plimsoll_runtime.api.choices import Choice
from plimsoll_runtime.api.errors import ApiError, engine_died
from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.engine.messages import LogprobEntry
from plimsoll_runtime.errors import EngineDeadError, UsageError
from plimsoll_runtime.text.output import OutputText, TextDelta


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to one choice. `logprobs` has an entry for each of the delta's tokens where asked for,
    `prompt_logprobs` is packed.
    """

    choice: Choice
    delta: TextDelta
    logprobs: Sequence[LogprobEntry] = ()
    prompt_logprobs: Sequence[bytes] | None = None
    cached_tokens: int = 0

    @property
    def packed_bytes(self) -> int:
        """The size of what is packed in it."""
        return sum(map(len, self.prompt_logprobs or ()))


async def generate(model: ServedModel, choices: Sequence[Choice], record: RequestRecord) -> AsyncGenerator[Piece, None]:
    """All pieces of all choices as they come. Closing it aborts what still runs. Raises ApiError."""
    pieces = _answer(model, choices[0], record) if len(choices) == 1 else _merged(model, choices, record)
    try:
        with model.room.take(*_seats(choices)) as seats:
            async with aclosing(pieces):
                async for piece in pieces:
                    seats.leave(piece.choice.index)
                    record.saw(piece.choice.index, len(piece.delta.token_ids), time.monotonic())
                    if piece.delta.finish_reason is not None:
                        record.finished(piece.delta.finish_reason)
                    yield piece
    except EngineDeadError as error:
        raise engine_died(str(error)) from error
    except UsageError as error:
        raise ApiError(f"The request cannot be served: {error}.", code="invalid_value") from error


def _seats(choices: Sequence[Choice]) -> tuple[dict[int, int], dict[int, int]]:
    """Which prompt each answer is made of, and how many tokens each prompt has."""
    return {c.index: c.prompt for c in choices}, {c.prompt: len(c.request.prompt_token_ids) for c in choices}


async def _answer(model: ServedModel, choice: Choice, record: RequestRecord) -> AsyncGenerator[Piece, None]:
    text = OutputText(choice.request.params, model.tokenizer)
    async with aclosing(model.engine.generate(choice.request)) as outputs:
        async for output in outputs:
            if output.finish_reason == "deadline":
                raise _too_late(output.error or "its deadline passed")
            if output.error is not None:
                raise _failed(output.error)
            started = time.perf_counter()
            delta = text.push(output)
            record.text_seconds += time.perf_counter() - started
            yield Piece(
                choice,
                delta,
                output.logprobs[: len(delta.token_ids)],
                output.prompt_logprobs,
                output.cached_tokens,
            )
            if delta.finish_reason is not None:
                return
    raise _failed("the engine ended the request without an answer")


async def _merged(model: ServedModel, choices: Sequence[Choice], record: RequestRecord) -> AsyncGenerator[Piece, None]:
    """The pieces of several choices, each pumped by a task of its own into one queue, and how each task ended."""
    queue: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()

    async def pump(choice: Choice) -> None:
        async with aclosing(_answer(model, choice, record)) as pieces:
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


def _too_late(reason: str) -> ApiError:
    """The answer would have been of no use: OpenAI's clients are told not to try again by themselves."""
    return ApiError(
        f"The request was given up: {reason}. Allow more time, or send less.",
        status=HTTPStatus.GATEWAY_TIMEOUT,
        code="deadline_exceeded",
        headers={"x-should-retry": "false"},
    )


def _failed(reason: str) -> ApiError:
    return ApiError(
        f"The engine could not go on with the request: {reason}.",
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        code="engine_error",
    )
