"""A request that has been read, on its way to the answer: it gets its model, is prepared for it, and runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from plimsoll_runtime.api.load import load_of
from plimsoll_runtime.api.offload import offload
from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.api.sse import Comment, Events
from plimsoll_runtime.api.table import ModelTable

JobT = TypeVar("JobT")
AnswerT = TypeVar("AnswerT")

WAITING = Comment("the model is being loaded")


@dataclass(frozen=True, slots=True)
class Ask(Generic[JobT]):
    """A request for the model `name`, which is its own for as long as the answer takes. `prepare` makes the job of the
    model, in a thread where the body `data` is long.
    """

    models: ModelTable
    name: str
    data: bytes | bytearray
    prepare: Callable[[ServedModel], JobT]
    record: RequestRecord

    async def whole(self, run: Callable[[JobT], Awaitable[AnswerT]]) -> AnswerT:
        """The answer as one. Raises ApiError."""
        async with self.models.lease(self.name, len(self.data)) as model:
            return await run(await self._job(model))

    async def events(self, run: Callable[[JobT], Events]) -> Events:
        """The answer as events of a stream, with comments while it waits for its model. Raises ApiError."""
        async with AsyncExitStack() as stack:
            entering = asyncio.ensure_future(stack.enter_async_context(self.models.lease(self.name, len(self.data))))
            async with aclosing(_comments(entering, self.models.keep_alive)) as comments:
                async for comment in comments:
                    yield comment
            events = await stack.enter_async_context(aclosing(run(await self._job(entering.result()))))
            async for event in events:
                yield event

    async def _job(self, model: ServedModel) -> JobT:
        self.record.model = model.names[0]
        self.record.load = partial(load_of, model)
        model.room.check()
        return await offload(len(self.data), lambda: self.prepare(model))


async def _comments(waiting: asyncio.Future[ServedModel], interval: float | None) -> AsyncGenerator[Comment, None]:
    """One for each interval (seconds) until it is done; left early, it is cancelled."""
    try:
        while not (await asyncio.wait({waiting}, timeout=interval))[0]:
            yield WAITING
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
