"""A request that has been read, on its way to the answer: it gets its model, is prepared for it, and runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from plimsoll_runtime.api.offload import offload
from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.api.sse import Events

JobT = TypeVar("JobT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Ask(Generic[JobT]):
    """`lease` gives the model for as long as the answer takes; `prepare` makes the job of it, in a thread where the
    body `data` is long.
    """

    lease: AbstractAsyncContextManager[ServedModel]
    data: bytes | bytearray
    prepare: Callable[[ServedModel], JobT]
    record: RequestRecord

    async def whole(self, run: Callable[[JobT], Awaitable[AnswerT]]) -> AnswerT:
        """The answer as one. Raises ApiError."""
        async with self.lease as model:
            return await run(await self._job(model))

    async def events(self, run: Callable[[JobT], Events]) -> Events:
        """The answer as events of a stream. Raises ApiError."""
        async with self.lease as model, aclosing(run(await self._job(model))) as events:
            async for event in events:
                yield event

    async def _job(self, model: ServedModel) -> JobT:
        self.record.model = model.names[0]
        model.room.check()
        return await offload(self.data, lambda: self.prepare(model))
