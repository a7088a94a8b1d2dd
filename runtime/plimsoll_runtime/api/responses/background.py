"""Background responses, which run without their client. Clients follow their events, or cancel them, by id."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec

from plimsoll_runtime.api.endpoint import Ask
from plimsoll_runtime.api.http.concurrency import offload
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.responses.errors import not_kept
from plimsoll_runtime.api.responses.shares import StoredResponse
from plimsoll_runtime.api.responses.store import ResponseStore
from plimsoll_runtime.api.responses.turn import Turn
from plimsoll_runtime.api.schemas.response import ResponseStatus
from plimsoll_runtime.api.schemas.response_events import (
    ENDS,
    Created,
    Failed,
    Numbered,
    OfResponse,
    Queued,
    ResponseEvent,
)
from plimsoll_runtime.api.server.state import ServerState
from plimsoll_runtime.api.telemetry.request_record import RequestRecord

_EVENTS = msgspec.json.Decoder(list[ResponseEvent])
_LEVEL = 1
"""Compression level: events are so repetitive that more effort saves little."""


class Log:
    """The events of a background response so far, in the order of their sequence numbers."""

    def __init__(self) -> None:
        self.events: list[Numbered] = []
        self._ended = False
        self._news = asyncio.Event()

    def add(self, event: Numbered) -> None:
        """Number an event and append it."""
        event.sequence_number = len(self.events)
        self.events.append(event)
        self._tell()

    def end(self) -> None:
        """Mark the log as complete: readers of `after` end once they have all events."""
        self._ended = True
        self._tell()

    async def after(self, number: int) -> AsyncGenerator[Numbered, None]:
        """Yield the events with a higher number as they arrive, until the end."""
        at = number + 1
        while True:
            while at < len(self.events):
                yield self.events[at]
                at += 1
            if self._ended:
                return
            await self._news.wait()

    def _tell(self) -> None:
        """Wake the waiting readers."""
        self._news.set()
        self._news = asyncio.Event()


def pack(events: Sequence[Numbered]) -> bytes:
    """Return compressed events for the store."""
    return zlib.compress(msgspec.json.encode(events), _LEVEL)


def unpack(data: bytes) -> list[ResponseEvent]:
    """Return events from the store."""
    return _EVENTS.decode(zlib.decompress(data))


logger = logging.getLogger(__name__)

ROUTE = "/v1/responses (background)"
"""Name by which metrics count background responses, which end long after their requests."""
STOPPED = "The server was stopped before the response had ended; send the request again."
EVENT_BYTES = 256
"""Estimate of an event's size as JSON."""
Observe = Callable[[RequestRecord, str, str, int], None]


class BackgroundResponse:
    """One background response. `latest` is the response as clients see it at present; `log` has its events if clients
    may follow them. `begun` is set once it runs on its model; `refusal` is the error if it cannot run. `ending` says
    that it is too late to cancel it."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.latest = turn.draft.response("queued")
        self.log = Log()
        self.follows = bool(turn.body.stream)
        self.begun = asyncio.Event()
        self.refusal: ApiError | None = None
        self.ending = False
        self._ends_as: ResponseStatus = "cancelled"
        self._task: asyncio.Task[None] | None = None

    def tell(self, event: Numbered) -> None:
        """Record an event."""
        if isinstance(event, OfResponse):
            self.latest = event.response
        if self.follows:
            self.log.add(event)

    def begin(self) -> None:
        """Record the first events, `response.created` and `response.queued`: the response waits for its model."""
        self.tell(Created(response=self.latest))
        self.tell(Queued(response=self.latest))

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start the task, which can be cancelled until `ending`."""
        self._task = asyncio.create_task(work)
        return self._task

    async def break_off(self, status: ResponseStatus) -> None:
        """End the response with this status unless it is already ending, and wait for its end."""
        assert self._task is not None, "the response has not been started"
        if not self.ending:
            self.ending, self._ends_as = True, status
            self._task.cancel()
        await asyncio.wait({self._task})

    def broken_off(self) -> None:
        """Record the end after `break_off`: failed with a last event, or cancelled. A cancelled response has no last
        event; its stream just ends."""
        if self._ends_as == "cancelled":
            self.latest = self.turn.draft.response("cancelled", self.turn.output.snapshot())
        else:
            self.tell(self.turn.failed(ApiError(STOPPED, status=HTTPStatus.SERVICE_UNAVAILABLE)))

    def unkept(self) -> Failed:
        """Return the event that ends, as failed, a response whose output could not be stored."""
        return Failed(response=self.turn.draft.failed(not_kept()))

    async def kept(self, last: OfResponse | None = None) -> StoredResponse:
        """Return the ended response for the store, with its last event."""
        events = list(self.log.events)
        if last is not None:
            last.sequence_number = len(events)
            events.append(last)
        response = self.latest if last is None else last.response
        packed = await offload(len(events) * EVENT_BYTES, partial(pack, events)) if self.follows else b""
        return self.turn.kept(response, packed)


class Background:
    """The running background responses, by id. A stopping server waits for them as for requests."""

    def __init__(self, store: ResponseStore, state: ServerState, observe: Observe) -> None:
        self._store = store
        self._state = state
        self._observe = observe
        self._running: dict[str, BackgroundResponse] = {}

    def get(self, response: str, owner: str) -> BackgroundResponse | None:
        """Return the running response with that id, None if there is none of this owner."""
        running = self._running.get(response)
        return running if running is not None and running.turn.owner == owner else None

    async def start(
        self, turn: Turn, ask: Callable[[BackgroundResponse], Ask], patience: float | None
    ) -> BackgroundResponse:
        """Store a response as running, and run it. Return once it runs on its model, or after `patience` seconds (None:
        without limit). An error before that is raised (ApiError), and the response is deleted from the store."""
        running = BackgroundResponse(turn)
        self._state.admit()
        try:
            if not await self._store.put(turn.kept(running.latest, running=True)):
                raise not_kept()
        except BaseException:
            self._state.release()
            raise
        running.begin()
        self._running[turn.draft.id] = running
        task = running.run(self._run(running, ask(running)))
        beginning = asyncio.create_task(running.begun.wait())
        try:
            await asyncio.wait({task, beginning}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.forget(running)
            raise
        finally:
            beginning.cancel()
        if running.refusal is not None:
            await self._store.delete(turn.draft.id, turn.owner)
            raise running.refusal
        return running

    async def forget(self, running: BackgroundResponse) -> None:
        """Cancel a response and delete it."""
        await running.break_off("cancelled")
        await self._store.delete(running.turn.draft.id, running.turn.owner)

    async def close(self) -> None:
        """End all running responses as failed."""
        for running in list(self._running.values()):
            await running.break_off("failed")

    async def _run(self, running: BackgroundResponse, ask: Ask) -> None:
        try:
            last = await self._played(running, ask)
            running.ending = True
            if not await self._store.put(await running.kept(last)):
                last = running.unkept()
                await self._store.put(await running.kept(last))
            running.tell(last)  # stored first, so that a client that reads the last event finds it
        except asyncio.CancelledError:
            running.broken_off()
            await self._store.put(await running.kept())
        finally:
            running.log.end()
            del self._running[running.turn.draft.id]
            self._state.release()
            self._report(running, ask.record)

    async def _played(self, running: BackgroundResponse, ask: Ask) -> OfResponse:
        """Run the response, and record all its events except the last, which is returned; after an error that is
        `response.failed`."""
        try:
            async with aclosing(ask.events()) as events:
                async for event in events:
                    if isinstance(event, ENDS):
                        return event
                    if isinstance(event, Numbered):
                        running.tell(event)
        except ApiError as error:
            if not running.begun.is_set():
                running.refusal = error
            return running.turn.failed(error)
        except Exception:
            logger.exception("response %s failed", running.turn.draft.id)
        failed = ApiError("The server failed; see its log.", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        return running.turn.failed(failed)

    def _report(self, running: BackgroundResponse, record: RequestRecord) -> None:
        failed = running.latest.status == "failed"
        self._observe(record, "POST", ROUTE, HTTPStatus.INTERNAL_SERVER_ERROR if failed else HTTPStatus.OK)
        logger.info(
            "%s response %s %s in %.0fms, %d prompt tokens (%d cached), %d generated",
            record.request_id,
            running.turn.draft.id,
            running.latest.status,
            (time.monotonic() - record.started) * 1e3,
            record.prompt_tokens,
            record.cached_tokens,
            record.completion_tokens,
        )
