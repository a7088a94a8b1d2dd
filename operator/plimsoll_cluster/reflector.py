"""Keep a part of a store equal to its collection on the API server, by lists and watches."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from plimsoll_cluster.keys import Object, ObjectKey
from plimsoll_cluster.resource import Entry, T
from plimsoll_cluster.store import Part

log = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0


class GoneError(Exception):
    """The resource version to continue from has expired (410): the collection must be listed again."""


class UnreachableError(Exception):
    """The API server could not be reached, or rejected the request; the message has the reason. A retry may succeed."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list. `items` can be iterated once; `version` is the resource version of the whole list."""

    items: Iterable[Object]
    version: int


class Source(Protocol):
    """A collection on the API server."""

    @property
    def title(self) -> str:
        """Name of the collection in log messages."""

    def list(self) -> AsyncIterator[Page]:
        """Yield all objects in pages, as of a time after the call. Raises GoneError or UnreachableError."""

    def watch(self, version: int) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield events after `version` until the server ends the watch. Raises GoneError or UnreachableError."""


class Lister(Generic[T]):
    """Lists a source each time its part requests it (`Part.doubt`). Events come from elsewhere (`Part.merge`)."""

    def __init__(
        self, source: Source, part: Part[T], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._source = source
        self._part = part
        self._sleep = sleep
        self._delay = FIRST_DELAY
        self._doubted = asyncio.Event()
        part.on_doubt(self._doubted.set)

    async def run(self) -> None:
        """List after each call of `Part.doubt`, not at the start, until cancelled. A failed list is repeated."""
        while True:
            await self._doubted.wait()
            self._doubted.clear()
            while self._part.outdated:
                try:
                    await self.list()
                    self._delay = FIRST_DELAY
                except (GoneError, UnreachableError) as error:
                    await self._wait_after(error)

    async def list(self) -> None:
        """List the collection once. One object at a time is held in full; only its entry is kept."""
        number, version = self._part.begin_list(), 0
        entries: dict[ObjectKey, Entry[T]] = {}
        async for page in self._source.list():
            version = version or page.version
            for item in page.items:
                entry = self._part.resource.entry(item)
                entries[entry.key] = entry
        self._part.end_list(number, entries, version)

    async def _wait_after(self, error: Exception) -> None:
        log.warning("%s: %s; retrying in about %.1f s", self._source.title, error, self._delay)
        self._part.fail(f"{self._source.title}: {error}")
        await self._sleep(self._delay * random.uniform(0.5, 1.0))
        self._delay = min(self._delay * 2, LONGEST_DELAY)


class Reflector(Lister[T]):
    """Lists and watches a source. While the API server is unreachable, the part keeps its last state."""

    def __init__(
        self, source: Source, part: Part[T], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        super().__init__(source, part, sleep)
        self._watch: asyncio.Timeout | None = None
        part.on_doubt(self._end_watch)

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                while self._part.outdated:
                    await self.list()
                await self._follow()
            except GoneError:
                log.info("%s: the watch has expired; listing again", self._source.title)
                self._part.doubt()
                await self._sleep(FIRST_DELAY * random.random())
            except UnreachableError as error:
                await self._wait_after(error)

    async def _follow(self) -> None:
        """Run one watch until the server ends it or the part needs a list."""
        before = self._part.version
        try:
            async with asyncio.timeout(None) as self._watch, aclosing(self._source.watch(before)) as events:
                async for event in events:
                    self._part.take(event)
                    self._delay = FIRST_DELAY
        except TimeoutError:
            return
        finally:
            self._watch = None
        if self._part.version == before:  # do not restart a watch without events immediately
            await self._sleep(FIRST_DELAY)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.reschedule(asyncio.get_running_loop().time())
