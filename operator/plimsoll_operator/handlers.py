"""All handlers that kopf calls. Start here to see what the operator does.

kopf watches ModelDeployments and RuntimePools, which users write. Each event updates a store of `Controller`, which
queues a reconcile of the object (`controller/model_reconciler.py`, `pools/pool_reconciler.py`). A reconcile compares
spec and cluster, plans (`planning/plan.py`), acts and writes the status. It never reads the event: one reconcile may
handle many events, or none.

There are only `on.event` handlers. kopf's `on.create`, `on.update`, `on.resume`, `on.delete`, timers and daemons write
annotations or finalizers to every object, and `kubectl delete` would then hang while the operator is down.

Pods, Services and the other objects that the operator creates or reads come from its own watches (`plimsoll_cluster`),
which cost less and track the resource version that they have reached.
"""

from __future__ import annotations

from typing import Any

import kopf

from plimsoll_cluster.connection import Connection
from plimsoll_operator.controller.controller import Controller
from plimsoll_operator.controller.kopf_setup import Login, configure
from plimsoll_operator.spec.identity import GROUP, KIND, PLURAL, POOL_KIND, POOLS_PLURAL, VERSION


def register(controller: Controller, connection: Connection, registry: kopf.OperatorRegistry | None = None) -> None:
    """Register the operator's handlers in a kopf registry; by default in kopf's default registry."""
    login = Login(connection, lambda: controller.stores)

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        """Return a session for kopf's requests, with the operator's certificates, token and proxy. Each time that kopf
        has listed a collection with it, the operator lists the collection again for its own store.
        """
        return await login.session()

    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        """Return once this process holds the Lease. Until then kopf watches nothing, so a standby costs nothing."""
        configure(settings)
        await controller.start()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def model_deployment_changed(event: kopf.RawEvent, **_: Any) -> None:
        """Handle a ModelDeployment that was listed, created, changed or deleted."""
        controller.merge_event(KIND, event)

    @kopf.on.event(GROUP, VERSION, POOLS_PLURAL, registry=registry)
    async def runtime_pool_changed(event: kopf.RawEvent, **_: Any) -> None:
        """Handle a RuntimePool that was listed, created, changed or deleted."""
        controller.merge_event(POOL_KIND, event)

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        """Stop reconciling, wait for running writes, then release the Lease, so that another operator can take it."""
        await controller.stop()
