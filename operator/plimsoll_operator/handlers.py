"""kopf's part: it watches, and tells the work queue which object needs a pass. It writes nothing to the cluster."""

from __future__ import annotations

from typing import Any

import kopf

from plimsoll_operator.identity import GROUP, MANAGED_LABEL, MANAGER, OWNER_LABEL, PLURAL, VERSION, ObjectKey, key_of
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.work import WorkQueue

CHILD_LABELS: dict[str, Any] = {MANAGED_LABEL: MANAGER, OWNER_LABEL: kopf.PRESENT}


def make_registry(queue: WorkQueue, names: NameRegistry) -> kopf.OperatorRegistry:
    """Handlers of raw watch events only: kopf then keeps no state on objects, and adds no finalizer."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**options: Any) -> Any:
        return kopf.login_with_service_account(**options) or kopf.login_with_kubeconfig(**options)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def model_changed(event: Any, body: Any, **_: Any) -> None:
        key = key_of(body)
        gone = event["type"] == "DELETED"
        for neighbour in names.forget(key) if gone else names.note(body):
            queue.add(neighbour)
        if gone:
            queue.forget(key)
        else:
            queue.known.add(key)
            queue.add(key)

    @kopf.on.event("", "v1", "pods", labels=CHILD_LABELS, registry=registry)
    @kopf.on.event("", "v1", "services", labels=CHILD_LABELS, registry=registry)
    async def child_changed(body: Any, **_: Any) -> None:
        queue.add(ObjectKey(body["metadata"]["namespace"], body["metadata"]["labels"][OWNER_LABEL]))

    return registry


def make_settings() -> kopf.OperatorSettings:
    """No events, no peering, no scanning for definitions; watches that notice a dead connection."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 270
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    return settings
