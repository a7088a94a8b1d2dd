"""Runs the choices of one request on the engine and merges what comes of them, with text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from plimsoll_runtime.api.generating.choices import Choice
from plimsoll_runtime.api.http.engine_errors import check_output, failed
from plimsoll_runtime.api.http.record import RequestRecord
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.engine.protocol.messages import LogprobEntry
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


def all_pieces(model: ServedModel, choices: Sequence[Choice], record: RequestRecord) -> AsyncGenerator[Piece, None]:
    """The pieces of all choices as they come. Closing it aborts what still runs. Raises ApiError, EngineDeadError,
    UsageError.
    """
    return _of_one(model, choices[0], record) if len(choices) == 1 else _merged(model, choices, record)


async def _of_one(model: ServedModel, choice: Choice, record: RequestRecord) -> AsyncGenerator[Piece, None]:
    text = OutputText(choice.request.params, model.tokenizer)
    async with aclosing(model.engine.generate(choice.request)) as outputs:
        async for output in outputs:
            check_output(output)
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
    raise failed()


async def _merged(model: ServedModel, choices: Sequence[Choice], record: RequestRecord) -> AsyncGenerator[Piece, None]:
    """The pieces of several choices, each pumped by a task of its own into one queue, and how each task ended."""
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
