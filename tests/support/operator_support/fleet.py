"""Many ModelDeployments on a real API server: creating them, and waiting until the operator has settled each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import aiohttp
from operator_support.apiserver import ADMIN, ApiServer

from plimsoll_cluster.keys import Object
from plimsoll_cluster.kubernetes_source import follow
from plimsoll_cluster.resource import Entry
from plimsoll_cluster.store import Store
from plimsoll_operator.kube.stores import MODELS
from plimsoll_operator.spec.identity import API_VERSION, KIND

AT_A_TIME = 8
COLLECTION = f"/apis/{API_VERSION}/namespaces/{{}}/modeldeployments"


async def create(server: ApiServer, namespace: str, names: Iterable[str], **more: Any) -> None:
    """Create objects of one replica each, several at a time; `more` is added to each spec."""

    async def one(session: aiohttp.ClientSession, name: str) -> None:
        spec = {"model": {"source": "demo://gemma-3-270m"}, "replicas": 1, **more}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
        async with session.post(COLLECTION.format(namespace), json=body) as answer:
            answer.raise_for_status()

    await _each(server, names, one)


async def annotate(server: ApiServer, namespace: str, names: Iterable[str]) -> None:
    """Change each object in a part that the operator ignores: an event without a reconcile."""

    async def one(session: aiohttp.ClientSession, name: str) -> None:
        body = {"metadata": {"annotations": {"touched": "yes"}}}
        path = f"{COLLECTION.format(namespace)}/{name}"
        headers = {"Content-Type": "application/merge-patch+json"}
        async with session.patch(path, json=body, headers=headers) as answer:
            answer.raise_for_status()

    await _each(server, names, one)


async def _each(
    server: ApiServer, names: Iterable[str], one: Callable[[aiohttp.ClientSession, str], Awaitable[None]]
) -> None:
    left = iter(list(names))
    headers = {"Authorization": f"Bearer {ADMIN}"}
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(server.url, headers=headers, connector=connector) as session:

        async def some() -> None:
            for name in left:
                await one(session, name)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_A_TIME):
                group.create_task(some())


def is_settled(model: Entry[Object]) -> bool:
    """Return whether the status belongs to the present spec, and all pods of it were created."""
    item = model.value
    status = item.get("status") or {}
    wanted = item["spec"]["replicas"]
    present = status.get("observedGeneration") == item["metadata"]["generation"]
    return bool(present and status["updatedReplicas"] == wanted)


async def wait_settled(connection: Any, namespace: str, count: int, seconds: float) -> None:
    """Wait until this many objects are settled. Raise TimeoutError."""
    models = Store(MODELS, [namespace])
    settled: set[str] = set()
    done = asyncio.Event()

    def changed(changes: Any) -> None:
        for change in changes:
            if change.after is not None and is_settled(change.after):
                settled.add(change.key.name)
        if len(settled) >= count:
            done.set()

    models.listen(changed)
    async with asyncio.timeout(seconds):
        following = asyncio.create_task(follow(connection, models))
        try:
            await done.wait()
        finally:
            following.cancel()
            await asyncio.wait({following})


def counted(requests: Iterable[Any]) -> Counter[str]:
    """Count audit events by verb and resource, or by path for requests without a resource."""
    return Counter(f"{event['verb']} {_resource(event)}" for event in requests)


def _resource(event: Any) -> str:
    reference = event.get("objectRef")
    if reference is None:
        return str(event["requestURI"])
    return "/".join(part for part in (reference["resource"], reference.get("subresource")) if part)
