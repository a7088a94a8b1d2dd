"""Configures kopf for this operator: its settings, and the session of its requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any

import aiohttp
import kopf

from plimsoll_cluster.connection import Connection
from plimsoll_cluster.store import Part
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.status.events import CONTROLLER

LONGEST_BACKOFF = 3.0


class Backoffs(Iterable[float]):
    """Seconds between retries of a request. They never end, because kopf ends the operator after the last one.

    kopf cannot be woken while it waits, so the longest wait bounds how late it notices that the API server is back.
    """

    def __iter__(self) -> Iterator[float]:
        return chain((0.2, 0.5, 1.0, 2.0), repeat(LONGEST_BACKOFF))


class NoDiffBase(kopf.DiffBaseStorage):
    """Stores no last state of objects: only handlers of changes need one, and copying it takes half the time of
    handling an event.
    """

    def build(self, **_: object) -> kopf.BodyEssence:
        """Return an empty essence."""
        return kopf.BodyEssence({})

    def fetch(self, **_: object) -> None:
        """Return None."""

    def store(self, **_: object) -> None:
        """Store nothing."""


def configure(settings: kopf.OperatorSettings) -> None:
    """Set everything that differs from kopf's defaults."""
    # Our own Lease chooses the leader: kopf's peering compares clocks of machines and does not fence writes.
    settings.peering.standalone = True
    # kube/prerequisites.py checks that our kinds exist; watching definitions and namespaces would need more rights.
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500
    settings.watching.server_timeout = 300
    settings.networking.error_backoffs = Backoffs()
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    # kopf keeps an object's last event for this long. 0 makes it spin on Python 3.11.
    settings.queueing.idle_timeout = 0.2
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.process.ultimate_exiting_timeout = None
    # status/events.py posts events: kopf's have no action and no reporting instance, and need kopf's context.
    settings.posting.enabled = False
    settings.posting.reporting_component = CONTROLLER
    # kopf logs the success of each handler at INFO.
    logging.getLogger("kopf").setLevel(logging.WARNING)


LOGIN_SECONDS = 3.0
"""The least time between two logins: kopf logs in again immediately after each 401."""


class Login:
    """Makes sessions for kopf. Calls `stores` at each request; it returns None before there are any."""

    def __init__(
        self,
        connection: Connection,
        stores: Callable[[], Stores | None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sleep = sleep
        self._connection = connection
        self._stores = stores
        self._clock = clock
        self._last = float("-inf")

    async def session(self) -> kopf.AiohttpSession:
        """Return a new session; kopf closes it."""
        wait, self._last = self._last + LOGIN_SECONDS - self._clock(), self._clock()
        if wait > 0:
            await self._sleep(wait)
        session = self._connection.session(self._watch_requests)
        return kopf.AiohttpSession(server=self._connection.host, aiohttp_session=session)

    async def _watch_requests(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request of kopf. Record in the store whether a list or watch fails; after each list of kopf, let the
        store list the collection again.

        kopf's list does not report deleted objects. Our own list starts after kopf's response, so it no longer has the
        objects that were deleted before; kopf's watch reports those that are deleted later.
        """
        part = next((part for part in self._parts() if part.resource.path(part.namespace) == request.url.path), None)
        if part is None:
            return await handler(request)
        try:
            response = await handler(request)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            part.fail(f"{part.resource.plural}: {error or type(error).__name__}")
            raise
        if response.status >= 400:
            part.fail(f"{part.resource.plural}: the API server returned {response.status}: {response.reason}")
        elif "watch" in request.url.query:
            part.succeed()
        elif "continue" not in request.url.query:
            part.doubt()
        return response

    def _parts(self) -> Iterator[Part[Any]]:
        stores = self._stores()
        for store in stores.primaries() if stores is not None else ():
            yield from store.parts.values()
