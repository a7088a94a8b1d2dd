"""Source of a collection on the API server: paged lists, and watches with bookmarks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import aiohttp
import msgspec

from plimsoll_cluster.connection import Connection
from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_cluster.keys import Object
from plimsoll_cluster.reflector import GoneError, Lister, Page, Reflector, UnreachableError
from plimsoll_cluster.resource import Resource, version_of
from plimsoll_cluster.store import Store

PAGE_SIZE = 500
WATCH_SECONDS = 300  # the server ends a watch after this time; the next one continues from its last version
LIST_TIMEOUT = aiohttp.ClientTimeout(total=30)
# The server sends a bookmark about every minute, but none before the first event of a resource since its own start. So
# the connection of a watch without data for much longer may be dead, or not: the next watch shows it.
WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=150)


class _List(msgspec.Struct):
    """A page of a list. Its items are parsed one at a time, so that only one exists in its full form."""

    metadata: dict[str, Any]
    items: Sequence[msgspec.Raw] | None = None


async def follow(api: Connection, *stores: Store[Any]) -> None:
    """List and watch the collections of stores until cancelled."""
    await _keep(Reflector, api, stores)


async def list_on_doubt(api: Connection, *stores: Store[Any]) -> None:
    """List the collections of stores each time one of their parts requests it (`Part.doubt`), until cancelled. The
    events of these stores come from elsewhere.
    """
    await _keep(Lister, api, stores)


async def _keep(keeper: type[Lister[Any]], api: Connection, stores: Sequence[Store[Any]]) -> None:
    async with asyncio.TaskGroup() as group:
        for store in stores:
            for part in store.parts.values():
                group.create_task(keeper(KubernetesSource(api, store.resource, part.namespace), part).run())


class KubernetesSource:
    """A resource in one namespace, or in all namespaces.

    It requests paths directly: the library's generated methods have no timeout between two reads, which a watch needs,
    and build an object of each item.
    """

    def __init__(self, api: Connection, resource: Resource[Any], namespace: str | None) -> None:
        where = namespace or "all namespaces"
        self.title = f"{resource.plural} of {where}" if resource.namespaced else resource.plural
        self._api = api
        self._resource = resource
        self._path = resource.path(namespace)

    async def list(self) -> AsyncIterator[Page]:
        """Yield all objects in pages. The request has no resource version, so that the result includes all completed
        writes.
        """
        following = ""
        while True:
            query = {"continue": following} if following else {}
            async with self._ask(LIST_TIMEOUT, limit=str(PAGE_SIZE), **query) as response:
                body = msgspec.json.decode(await response.read(), type=_List)
            yield Page(_parsed(body.items or ()), version_of({"metadata": body.metadata}))
            following = body.metadata.get("continue", "")
            if not following:
                return

    async def watch(self, version: int) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield events after `version`, including bookmarks, until the server ends the watch or is silent for long."""
        query = {"resourceVersion": str(version), "timeoutSeconds": str(WATCH_SECONDS)}
        async with self._ask(WATCH_TIMEOUT, watch="true", allowWatchBookmarks="true", **query) as response:
            with suppress(aiohttp.SocketTimeoutError):
                async for line in _lines(response.content):
                    event = msgspec.json.decode(line)
                    if event["type"] == "ERROR":
                        raise _error(event["object"].get("code"), event["object"].get("message"))
                    yield event

    @asynccontextmanager
    async def _ask(self, patience: aiohttp.ClientTimeout, **query: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a GET request and close its response at the end. Raises GoneError (status 410) or UnreachableError."""
        if self._resource.selector:
            query["labelSelector"] = self._resource.selector
        if self._resource.name:
            query["fieldSelector"] = f"metadata.name={self._resource.name}"
        try:
            with closing(await self._api.ask("GET", self._path, query, patience=patience)) as response:
                if response.status != 200:
                    hint = f" ({self._resource.hint})" if response.status == 404 and self._resource.hint else ""
                    text = (await response.read()).decode("utf-8", "replace")[:500]
                    raise _error(response.status, text + hint)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError, *UNREADABLE) as error:
            raise UnreachableError(_words(error)) from error


def _parsed(items: Sequence[msgspec.Raw]) -> Iterator[Object]:
    for item in items:
        try:
            yield msgspec.json.decode(item)
        except UNREADABLE as error:
            raise UnreachableError(_words(error)) from error


def _error(code: int | None, message: str | None) -> Exception:
    if code == 410:
        return GoneError(message)
    return UnreachableError(f"the API server answered {code}: {message}")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length. `StreamReader.readline` has a limit of 128 KiB, which an object may exceed."""
    held = b""
    async for chunk in content.iter_any():
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
