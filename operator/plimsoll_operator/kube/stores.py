"""The kinds that the operator watches, the parts of each that it keeps, and its copies.

To add a kind: add a `Resource` and a store in `Stores` here, its rights in rbac.py, and in controller/event_routing.py
the objects to reconcile when it changes. A kind that users write also needs a handler in handlers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from plimsoll_cluster.keys import Object
from plimsoll_cluster.resource import Entry, Resource
from plimsoll_cluster.served_names.record import record_store
from plimsoll_cluster.store import Store
from plimsoll_operator.build import controller_revision
from plimsoll_operator.build.controller_revision import Revision, read_revision
from plimsoll_operator.planning.disruption_budget import FoundBudget, read_budget
from plimsoll_operator.planning.nodes import Node, read_node
from plimsoll_operator.planning.pods import FoundService, Pod, read_pod, read_service
from plimsoll_operator.spec.identity import (
    API_VERSION,
    GROUP,
    HOST_KIND,
    HOSTS_PLURAL,
    KIND,
    MANAGED_LABEL,
    MANAGER,
    NAME_LABEL,
    PLURAL,
    POOL_KIND,
    POOLS_PLURAL,
    RUNTIME_NAME,
    VERSION,
    ObjectKey,
    Owner,
)
from plimsoll_operator.spec.namespace_selector import NAMESPACE_LABEL, Labels

CHILDREN = f"{NAME_LABEL}={RUNTIME_NAME},{MANAGED_LABEL}={MANAGER}"
"""The selector of watched pods, Services, budgets and revisions: only those with our labels."""
CRD_HINT = "apply the crds/ of this release"
UNUSED = frozenset({"annotations", "managedFields", "resourceVersion"})


def read_labels(item: Object) -> Mapping[str, str]:
    """Return the labels of a Namespace."""
    return item["metadata"].get("labels") or {}


def _without_unused(kind: str, item: Object) -> Object:
    """Return the object without unused fields, and with its kind, which items of lists lack."""
    metadata = {name: value for name, value in item["metadata"].items() if name not in UNUSED}
    return {"apiVersion": API_VERSION, "kind": kind, **item, "metadata": metadata}


MODELS: Resource[Object] = Resource(
    KIND, f"/apis/{GROUP}/{VERSION}", PLURAL, partial(_without_unused, KIND), hint=CRD_HINT
)
POOLS: Resource[Object] = Resource(
    POOL_KIND,
    f"/apis/{GROUP}/{VERSION}",
    POOLS_PLURAL,
    partial(_without_unused, POOL_KIND),
    hint=CRD_HINT,
)
HOSTS: Resource[Object] = Resource(
    HOST_KIND,
    f"/apis/{GROUP}/{VERSION}",
    HOSTS_PLURAL,
    partial(_without_unused, HOST_KIND),
    hint=CRD_HINT,
)
PODS: Resource[Pod] = Resource("Pod", "/api/v1", "pods", read_pod, CHILDREN)
SERVICES: Resource[FoundService] = Resource("Service", "/api/v1", "services", read_service, CHILDREN)
BUDGETS: Resource[FoundBudget] = Resource(
    "PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets", read_budget, CHILDREN
)
REVISIONS: Resource[Revision] = Resource(
    controller_revision.KIND, f"/apis/{controller_revision.API}", controller_revision.PLURAL, read_revision, CHILDREN
)
NAMESPACES: Resource[Mapping[str, str]] = Resource("Namespace", "/api/v1", "namespaces", read_labels, namespaced=False)
NODES: Resource[Node] = Resource("Node", "/api/v1", "nodes", read_node, namespaced=False)


class Stores:
    """Copies of the watched objects in some namespaces; `namespaces` None means all.

    `with_nodes`, `with_namespaces`: whether those may be watched; they are cluster-scoped and need rights of their own.
    `name_record`: the ConfigMap with the record of served names, if there is one.
    """

    def __init__(
        self,
        namespaces: Sequence[str] | None,
        *,
        with_nodes: bool = False,
        with_namespaces: bool = False,
        name_record: ObjectKey | None = None,
    ) -> None:
        self.watched = None if namespaces is None else frozenset(namespaces)
        self.models = Store(MODELS, namespaces)
        self.pools = Store(POOLS, namespaces)
        self.hosts = Store(HOSTS, namespaces)
        self.pods = Store(PODS, namespaces)
        self.services = Store(SERVICES, namespaces)
        self.budgets = Store(BUDGETS, namespaces)
        self.revisions = Store(REVISIONS, namespaces)
        self.nodes = Store(NODES, None) if with_nodes else None
        self.namespaces = Store(NAMESPACES, None) if with_namespaces else None
        self.name_record = None if name_record is None else record_store(name_record)

    def primaries(self) -> tuple[Store[Object], ...]:
        """Return the stores of kinds that users write. kopf watches them."""
        return self.models, self.pools

    def all(self) -> tuple[Store[Any], ...]:
        """Return all stores."""
        return *self.primaries(), *self.secondaries()

    def secondaries(self) -> tuple[Store[Any], ...]:
        """Return the stores of kinds that the operator creates or only reads. Reflectors watch them."""
        stores: tuple[Store[Any], ...] = (
            self.hosts,
            self.pods,
            self.services,
            self.budgets,
            self.revisions,
        )
        more = [store for store in (self.nodes, self.namespaces, self.name_record) if store is not None]
        return (*stores, *more)

    def watches(self, namespace: str) -> bool:
        """Return whether objects of a namespace are watched."""
        return self.watched is None or namespace in self.watched

    def labels_of(self, namespace: str) -> Labels:
        """Return the labels of a namespace; only the label with its name if namespaces may not be watched."""
        if self.namespaces is None:
            return Labels.of_name(namespace)
        entry = self.namespaces.get(ObjectKey("", namespace))
        return Labels({NAMESPACE_LABEL: namespace} if entry is None else entry.value)

    def of(self, kind: str) -> Store[Any]:
        """Return the store of a kind."""
        return next(store for store in self.all() if store.resource.kind == kind)

    def troubles(self, failures: int = 1) -> list[str]:
        """Return a message for each collection whose list or watch has failed at least this many times in a row."""
        parts = [part for store in self.all() for part in store.parts.values()]
        return [part.trouble for part in parts if part.failures >= failures]

    def pods_of(self, owner: Entry[Object]) -> list[Pod]:
        """Return the pods that an object controls and that have the label with its name. Others are no replicas: the
        Service does not select them.
        """
        owned = self.pods.owned(owner.key.namespace, owner.uid)
        return [entry.value for entry in owned if entry.value.model == owner.key.name]

    def revisions_of(self, owner: Owner) -> list[Revision]:
        """Return an object's stored revisions."""
        return [entry.value for entry in self.revisions.owned(owner.key.namespace, owner.uid)]

    async def wait_synced(self) -> None:
        """Wait until every collection has been listed once."""
        await asyncio.gather(*(store.wait_synced() for store in self.all()))
