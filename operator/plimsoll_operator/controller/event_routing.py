"""Routes changes of the stores to the objects to reconcile, and kopf's events to the stores."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from plimsoll_cluster.keys import Key, Object
from plimsoll_cluster.store import Change, Listener, Store
from plimsoll_operator.controller.work_queue import WorkQueue
from plimsoll_operator.kube.expectations import Expectations
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.nodes import Node, NodeRegistry
from plimsoll_operator.spec.identity import KIND, POOL_KIND

logger = logging.getLogger(__name__)

_RELEVANT = attrgetter("uid", "deleting", "owner", "value")


def route_changes(stores: Stores, queue: WorkQueue, expectations: Expectations, nodes: NodeRegistry) -> None:
    """Queue the objects that a change of a store concerns, and pass changes of nodes to `nodes`, from now on."""

    def concerns(change: Change[Any], keys: Iterable[Key]) -> None:
        waiting = expectations.put_off
        queue.add_all(key for key in keys if key in waiting or _differs(change))

    def changed(store: Store[Object]) -> Listener[Object]:
        """Return a listener that queues changed ModelDeployments or RuntimePools, except after our own write."""

        def told(changes: Sequence[Change[Object]]) -> None:
            for change in changes:
                key, after = change.key.of(store.resource.kind), change.after
                if after is None or not expectations.is_own(key, store, after.version):
                    concerns(change, [key])

        return told

    def namesakes_changed(changes: Sequence[Change[Any]]) -> None:
        for change in changes:
            concerns(change, {change.key.of(KIND)} | _owners(change))

    def nodes_changed(changes: Sequence[Change[Node]]) -> None:
        for change in changes:
            name, after = change.key.name, change.after
            queue.add_all(nodes.forget(name) if after is None else nodes.note(name, after.value))

    def listed() -> None:
        queue.add_all(expectations.put_off)

    def children_changed(changes: Sequence[Change[Any]]) -> None:
        for change in changes:
            concerns(change, _owners(change))

    stores.models.listen(changed(stores.models), listed)
    stores.pools.listen(changed(stores.pools), listed)
    stores.pods.listen(children_changed, listed)
    stores.revisions.listen(children_changed, listed)
    stores.services.listen(namesakes_changed, listed)
    stores.budgets.listen(namesakes_changed, listed)
    if stores.nodes is not None:
        stores.nodes.listen(nodes_changed)


def merge_event(store: Store[Object], queue: WorkQueue, event: Mapping[str, Any]) -> None:
    """Apply an event that kopf received. If that fails, queue the object and list its collection again.

    kopf only logs an error of a handler and continues: without a list, the event would be lost.
    """
    metadata = event["object"]["metadata"]
    part = store.part_of(metadata["namespace"])
    try:
        part.merge(event)
    except Exception:  # Whatever the error is, the event must not be lost.
        logger.exception(
            "%s %s/%s: applying the event failed", store.resource.kind, metadata["namespace"], metadata["name"]
        )
        queue.add(Key(store.resource.kind, metadata["namespace"], metadata["name"]))
        part.doubt()


def _differs(change: Change[Any]) -> bool:
    """Return whether a stored part of the object has changed, apart from its resource version. Stores keep only the
    parts that reconciles use.
    """
    before, after = change.before, change.after
    if before is None or after is None:
        return True
    return _RELEVANT(before) != _RELEVANT(after)


def _owners(change: Change[Any]) -> set[Key]:
    """Return the ModelDeployments and RuntimePools that own the object, or did before the change."""
    entries = [entry for entry in (change.before, change.after) if entry is not None]
    return {
        Key(entry.owner.kind, entry.key.namespace, entry.owner.name)
        for entry in entries
        if entry.owner is not None and entry.owner.kind in (KIND, POOL_KIND)
    }
