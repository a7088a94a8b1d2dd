"""Endpoints that run a request on a model: a decoded body becomes a job of the named model, and the job's result
becomes the HTTP response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.http.body import Head, parse, read_body, read_head, read_rest
from plimsoll_runtime.api.http.concurrency import offload, unless_gone
from plimsoll_runtime.api.http.deadlines import in_time, too_late_is_told
from plimsoll_runtime.api.http.errors import json_response
from plimsoll_runtime.api.http.sse import Comment, Events, open_stream
from plimsoll_runtime.api.http.unknown_fields import ignored, refuse_unknown
from plimsoll_runtime.api.model_directory import GENERATES, ModelTable, Tasks, check_task
from plimsoll_runtime.api.schemas.sampling import ModelFields
from plimsoll_runtime.api.served_model import ServedModel, load_of
from plimsoll_runtime.api.telemetry.request_numbers import numbers_of
from plimsoll_runtime.api.telemetry.request_record import RequestRecord

BodyT = TypeVar("BodyT", bound=ModelFields)

WAITING = Comment("the model is being loaded")


class Job(Protocol):
    """A validated request, ready to run on its model."""

    def whole(self) -> Awaitable[msgspec.Struct]:
        """Return the complete response. Raises ApiError."""

    def events(self) -> Events:
        """Yield the response as events of a stream. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[BodyT]):
    """A route whose body has the type `schema` and names a model that serves one of `tasks`.

    `prepare` checks everything that can be checked before the engine gets the request (raises ApiError); for a long
    body it runs in a thread. A very long body is decoded only when its model is ready. If a stream may start before
    that, its body is decoded immediately, because the headers of the HTTP response name the ignored fields.
    """

    schema: type[BodyT]
    prepare: Callable[[BodyT, ServedModel, RequestRecord], Job]
    tasks: Tasks = GENERATES

    async def __call__(self, request: Request, models: ModelTable, record: RequestRecord) -> Response:
        """Answer a request, as JSON or as a stream. Raises ApiError, ClientGoneError."""
        data = await read_body(request)
        record.phases.end("read")
        models.check()
        head = await unless_gone(request.receive, offload(len(data), partial(self._read, data, models, record)))
        record.phases.end("parse")
        prepare = partial(self._prepared, data, head, record)
        ask = Ask(models, head.model, len(data), prepare, record, self.tasks)
        if head.stream:
            return await open_stream(request, ask.events(), record)
        return json_response(await unless_gone(request.receive, ask.whole()))

    def _read(self, data: bytearray, models: ModelTable, record: RequestRecord) -> Head | BodyT:
        head = read_head(data, self.schema)
        if isinstance(head, Head) and (models.keep_alive is None or not head.stream):
            return head
        body = read_rest(data, head, self.schema)
        record.ignored = ignored(body)
        return body

    def _prepared(self, data: bytearray, head: Head | BodyT, record: RequestRecord, model: ServedModel) -> Job:
        if isinstance(head, Head):
            return self.prepared(parse(data, self.schema), model, record)
        return self._checked(head, model, record)  # `_read` has recorded its ignored fields

    def prepared(self, body: BodyT, model: ServedModel, record: RequestRecord) -> Job:
        """Return the job of a decoded body. Raises ApiError."""
        record.ignored = ignored(body)
        return self._checked(body, model, record)

    def _checked(self, body: BodyT, model: ServedModel, record: RequestRecord) -> Job:
        if record.traced:
            record.asked = numbers_of(body)
        if model.options.strict_parameters:
            refuse_unknown(body)
        return self.prepare(body, model, record)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that holds a reference to the model `name` until its response is complete. `prepare` makes the job;
    it runs in a thread if the body of `size` bytes is long. Raises ApiError if the model serves none of `tasks`."""

    models: ModelTable
    name: str
    size: int
    prepare: Callable[[ServedModel], Job]
    record: RequestRecord
    tasks: Tasks = GENERATES

    async def whole(self) -> msgspec.Struct:
        """Return the complete response. Raises ApiError."""
        with too_late_is_told(self.record):
            async with asyncio.timeout_at(self.record.until), self.models.lease(self.name, self.size) as model:
                return await (await self._job(model)).whole()

    def events(self) -> Events:
        """Yield the response as events of a stream, with comments while the model is loading. Raises ApiError."""
        events = self._events()
        return events if self.record.until is None else in_time(events, self.record)

    async def _events(self) -> Events:
        async with AsyncExitStack() as stack:
            entering = asyncio.ensure_future(stack.enter_async_context(self.models.lease(self.name, self.size)))
            async with aclosing(_comments(entering, self.models.keep_alive)) as comments:
                async for comment in comments:
                    yield comment
            job = await self._job(entering.result())
            events = await stack.enter_async_context(aclosing(job.events()))
            async for event in events:
                yield event

    async def _job(self, model: ServedModel) -> Job:
        self.record.phases.end("wake")
        self.record.model, self.record.key = model.names[0], model.key
        self.record.load = partial(load_of, model)
        check_task(model, self.tasks)
        model.room.check()
        job = await offload(self.size, partial(self.prepare, model))
        self.record.phases.end("check")
        return job


async def _comments(waiting: asyncio.Future[ServedModel], interval: float | None) -> AsyncGenerator[Comment, None]:
    """Yield a comment every `interval` seconds until `waiting` is done. Closing the generator early cancels
    `waiting`."""
    try:
        while not (await asyncio.wait({waiting}, timeout=interval))[0]:
            yield WAITING
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
