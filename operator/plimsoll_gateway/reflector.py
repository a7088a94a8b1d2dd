"""A local copy of a collection of Kubernetes objects, kept true by list and watch."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from plimsoll_gateway.objects import Object
from plimsoll_gateway.table import ObjectKey

log = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0


class GoneError(Exception):
    """The resource version to watch from has expired (410): the collection must be listed again."""


class UnreachableError(Exception):
    """The API server could not be asked, or refused; the message says why. Worth another try."""


class Source(Protocol):
    """A collection on the API server."""

    @property
    def title(self) -> str:
        """What is watched, for the log."""

    async def list(self) -> tuple[list[Object], str]:
        """All objects and the collection's resource version. Raises UnreachableError."""

    def watch(self, resource_version: str) -> AsyncIterator[Mapping[str, Any]]:
        """Events from that version on, until the server ends the watch. Raises GoneError or UnreachableError."""


class Reflector:
    """Follows one source; `changed` is called after each change. `items` is None until the first list."""

    def __init__(
        self,
        source: Source,
        changed: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._changed = changed
        self._sleep = sleep
        self.items: dict[ObjectKey, Object] | None = None

    async def run(self) -> None:
        """Follow for ever. While the API server is away, `items` stays as it was last known."""
        delay = FIRST_DELAY
        version = ""
        while True:
            try:
                if not version:
                    version = await self._relist()
                before = version
                async for event in self._source.watch(version):
                    version = self._apply(event)
                    delay = FIRST_DELAY
                if version == before:  # a watch that ends with nothing to tell is not begun again at once
                    await self._sleep(FIRST_DELAY)
            except GoneError:
                log.info("%s: the watch has expired; listing again", self._source.title)
                version = ""
                await self._sleep(FIRST_DELAY * random.random())
            except UnreachableError as error:
                log.warning("%s: %s; trying again in about %.1f s", self._source.title, error, delay)
                await self._sleep(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, LONGEST_DELAY)

    async def _relist(self) -> str:
        objects, version = await self._source.list()
        self.items = {_key(item): item for item in objects}
        self._changed()
        return version

    def _apply(self, event: Mapping[str, Any]) -> str:
        """Take in one event; returns the version that the next watch begins at."""
        item: Object = event["object"]
        version = str(item["metadata"]["resourceVersion"])
        if event["type"] == "BOOKMARK" or self.items is None:
            return version
        if event["type"] == "DELETED":
            self.items.pop(_key(item), None)
        else:
            self.items[_key(item)] = item
        self._changed()
        return version


def _key(item: Object) -> ObjectKey:
    meta = item["metadata"]
    return ObjectKey(meta["namespace"], meta["name"])
