"""The table from the cluster: watches ModelDeployments and runtime pods. Only this module needs Kubernetes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from itertools import chain
from typing import Any
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client, config

from plimsoll_gateway.objects import GROUP, PLURAL, POD_SELECTOR, VERSION, Object, table_of
from plimsoll_gateway.reflector import GoneError, Reflector, UnreachableError
from plimsoll_gateway.table import TableStore

log = logging.getLogger(__name__)

WATCH_SECONDS = 300  # the server ends a watch after this; we begin the next one where it ended
LIST_TIMEOUT = aiohttp.ClientTimeout(total=30)
# Bookmarks come about every minute: a watch that is silent for much longer hangs on a dead connection.
WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=150)
# Changes that come together (a roll, a relist) become one new table.
SETTLE_SECONDS = 0.02


class KubernetesSource:
    """One collection of one namespace, or of all.

    Paths are asked for directly: the generated methods accept no timeout between two reads, which a watch needs.
    """

    def __init__(self, title: str, api: client.ApiClient, path: str, query: Mapping[str, str]) -> None:
        self.title = title
        self._api = api
        self._path = path
        self._query = query

    async def list(self) -> tuple[list[Object], str]:
        """All objects and the collection's resource version."""
        response = await self._ask(LIST_TIMEOUT)
        try:
            body = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise UnreachableError(_words(error)) from error
        finally:
            response.close()
        return body["items"], body["metadata"]["resourceVersion"]

    async def watch(self, resource_version: str) -> AsyncIterator[Mapping[str, Any]]:
        """Events from that version on, with bookmarks, until the server ends the watch."""
        response = await self._ask(
            WATCH_TIMEOUT,
            watch="true",
            resourceVersion=resource_version,
            allowWatchBookmarks="true",
            timeoutSeconds=str(WATCH_SECONDS),
        )
        try:
            async for line in _lines(response.content):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error(event["object"].get("code"), event["object"].get("message"))
                yield event
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise UnreachableError(_words(error)) from error
        finally:
            response.close()

    async def _ask(self, patience: aiohttp.ClientTimeout, **query: str) -> aiohttp.ClientResponse:
        try:
            method, url, headers, _, _ = await self._api.param_serialize(
                "GET",
                self._path,
                query_params=[*self._query.items(), *query.items()],
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            answer = await self._api.call_api(method, url, headers, _request_timeout=patience)
            response: aiohttp.ClientResponse = answer.response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(_words(error)) from error
        if response.status != 200:
            text = (await response.text())[:500]
            response.close()
            raise _error(response.status, text)
        return response


def _error(code: int | None, message: str | None) -> Exception:
    if code == 410:
        return GoneError(message)
    return UnreachableError(f"the API server answered {code}: {message}")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length (the reader's own readline gives up at 128 KiB, which an object may exceed)."""
    held = b""
    async for chunk in content.iter_any():
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line


class ClusterTable:
    """Keeps a store true to the objects of some namespaces; `namespaces` None means all."""

    def __init__(self, api: client.ApiClient, namespaces: list[str] | None, store: TableStore) -> None:
        self._store = store
        self._dirty = asyncio.Event()
        scopes: list[str | None] = [None] if namespaces is None else list(namespaces)
        self._deployments = [Reflector(_deployments(api, scope), self._dirty.set) for scope in scopes]
        self._pods = [Reflector(_pods(api, scope), self._dirty.set) for scope in scopes]

    async def follow(self) -> None:
        """Watch for ever."""
        async with asyncio.TaskGroup() as group:
            for reflector in (*self._deployments, *self._pods):
                group.create_task(reflector.run())
            group.create_task(self._rebuild())

    async def _rebuild(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            self._dirty.clear()
            deployments = _all(self._deployments)
            pods = _all(self._pods)
            if deployments is not None and pods is not None:
                self._store.replace(table_of(deployments, pods))


def _all(reflectors: list[Reflector]) -> list[Object] | None:
    """The objects of all namespaces; None until each has been listed."""
    known = [reflector.items for reflector in reflectors]
    if any(items is None for items in known):
        return None
    return list(chain.from_iterable(items.values() for items in known if items is not None))


def _deployments(api: client.ApiClient, namespace: str | None) -> KubernetesSource:
    path = f"/apis/{GROUP}/{VERSION}{_within(namespace)}/{PLURAL}"
    return KubernetesSource(f"ModelDeployments of {namespace or 'all namespaces'}", api, path, {})


def _pods(api: client.ApiClient, namespace: str | None) -> KubernetesSource:
    path = f"/api/v1{_within(namespace)}/pods"
    return KubernetesSource(
        f"runtime pods of {namespace or 'all namespaces'}", api, path, {"labelSelector": POD_SELECTOR}
    )


def _within(namespace: str | None) -> str:
    return "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"


class NoClusterError(Exception):
    """There is no cluster to watch; the message says what was looked for."""


async def follow_cluster(namespaces: list[str] | None, store: TableStore) -> None:
    """Watch the cluster that this process runs in, or the one of the kubeconfig, for ever.

    Raises NoClusterError where neither is there.
    """
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            await config.load_kube_config()  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            raise NoClusterError(f"neither inside a pod nor with a usable kubeconfig ({error})") from error
    async with client.ApiClient() as api:
        await ClusterTable(api, namespaces, store).follow()
