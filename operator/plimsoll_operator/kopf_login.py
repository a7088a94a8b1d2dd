"""The HTTP session that kopf gets, and what is learnt from the requests that it makes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import kopf

from plimsoll_cluster.connection import Connection
from plimsoll_cluster.store import Part
from plimsoll_operator.kinds import Caches

LOGIN_SECONDS = 3.0
"""At least, between two logins: kopf logs in again after each 401, at once."""


class Login:
    """Makes sessions for kopf. `caches` is asked at each request; None before there are any."""

    def __init__(
        self,
        connection: Connection,
        caches: Callable[[], Caches | None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sleep = sleep
        self._connection = connection
        self._caches = caches
        self._clock = clock
        self._last = float("-inf")

    async def session(self) -> kopf.AiohttpSession:
        """A new session; kopf closes it."""
        wait, self._last = self._last + LOGIN_SECONDS - self._clock(), self._clock()
        if wait > 0:
            await self._sleep(wait)
        session = self._connection.session(self._watch_requests)
        return kopf.AiohttpSession(server=self._connection.host, aiohttp_session=session)

    async def _watch_requests(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Note which collections cannot be read, and doubt one that kopf has listed.

        kopf does not say which objects are gone when it lists. A list of our own that begins after kopf's has been
        answered shows each object that was gone before it; of those that go later kopf's watch tells.
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
            part.fail(f"{part.resource.plural}: the API server answered {response.status}: {response.reason}")
        elif "watch" in request.url.query:
            part.succeed()
        elif "continue" not in request.url.query:
            part.doubt()
        return response

    def _parts(self) -> Iterator[Part[Any]]:
        caches = self._caches()
        for store in caches.primaries() if caches is not None else ():
            yield from store.parts.values()
