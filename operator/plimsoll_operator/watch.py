"""kopf's part: it watches, and tells the work queue which object needs a pass. It writes nothing to the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import kopf

from plimsoll_operator.api import Api
from plimsoll_operator.identity import GROUP, MANAGED_LABEL, MANAGER, OWNER_LABEL, PLURAL, VERSION, ObjectKey, key_of
from plimsoll_operator.nodes import NodeRegistry
from plimsoll_operator.work import WorkQueue

CHILDREN = f"{MANAGED_LABEL}={MANAGER},{OWNER_LABEL}"


class WatchError(Exception):
    """Watching has ended; the message says why."""


async def watch(
    api: Api,
    queue: WorkQueue,
    namespaces: Sequence[str] | None,
    arm_signals: Callable[[], None],
    nodes: NodeRegistry | None = None,
) -> None:
    """Watch for ever; None means all namespaces, and no nodes. `arm_signals` takes signals back from kopf.

    Raises WatchError.
    """
    others = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=make_registry(api, queue, nodes),
        settings=make_settings(),
        namespaces=list(namespaces or ()),
        clusterwide=namespaces is None,
        standalone=True,
    )
    arm_signals()
    try:
        await kopf.run_tasks(tasks, ignored=others)
    except Exception as error:
        raise WatchError(f"ModelDeployments, pods and Services cannot be watched: {error}") from error
    raise WatchError("kopf has ended")


def make_registry(api: Api, queue: WorkQueue, nodes: NodeRegistry | None = None) -> kopf.OperatorRegistry:
    """Handlers of raw watch events only: kopf then keeps no state on objects, and adds no finalizer."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        used = await api.credentials()
        return kopf.ConnectionInfo(
            server=used.server,
            insecure=used.insecure,
            ca_path=used.ca_path,
            certificate_path=used.certificate_path,
            private_key_path=used.private_key_path,
            scheme=used.scheme,
            token=used.token,
        )

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def model_changed(body: Any, **_: Any) -> None:
        queue.add(key_of(body))

    @kopf.on.event("", "v1", "pods", registry=registry)
    @kopf.on.event("", "v1", "services", registry=registry)
    async def child_changed(body: Any, **_: Any) -> None:
        queue.add(ObjectKey(body["metadata"]["namespace"], body["metadata"]["labels"][OWNER_LABEL]))

    if nodes is not None:

        @kopf.on.event("", "v1", "nodes", registry=registry)
        async def node_changed(event: Any, body: Any, **_: Any) -> None:
            gone = event["type"] == "DELETED"
            queue.add_all(nodes.forget(body["metadata"]["name"]) if gone else nodes.note(body))

    return registry


def make_settings() -> kopf.OperatorSettings:
    """No events, no peering, no search for definitions; of pods and Services, only our own are sent to us."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.watching.server_timeout = 270
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    for children in ("pods", "services"):
        settings.watching.label_selectors["", "v1", children] = CHILDREN
    return settings
