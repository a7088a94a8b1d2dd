"""The routing table of a cluster, updated from changes of ModelDeployments, pods and ModelHosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from plimsoll_cluster.connection import connect
from plimsoll_cluster.keys import ObjectKey
from plimsoll_cluster.kubernetes_source import follow
from plimsoll_cluster.served_names.policy import NamePolicy
from plimsoll_cluster.served_names.record import parse_record, record_store
from plimsoll_cluster.served_names.rules import NO_RULES, NameRules
from plimsoll_cluster.store import Change, Store
from plimsoll_gateway.discovery.kubernetes_objects import HOSTS, MODELS, PODS, Hosted, Served, hosted_replica, model_of
from plimsoll_gateway.discovery.live_table import LiveTable
from plimsoll_gateway.discovery.routing_table import Replica, TableStore


def _soon(publish: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(publish)


class ClusterTable:
    """Builds the routing table from three stores, and a fourth if served names are recorded.

    Changes in the same iteration of the event loop make one table: the first of them calls `soon` with `publish`.
    """

    def __init__(
        self,
        namespaces: Sequence[str] | None,
        store: TableStore,
        soon: Callable[[Callable[[], None]], None] = _soon,
        *,
        rules: NameRules = NO_RULES,
        record: ObjectKey | None = None,
    ) -> None:
        """`record`: the ConfigMap with the record of served names."""
        self.models = Store(MODELS, namespaces)
        self.pods = Store(PODS, namespaces)
        self.hosts = Store(HOSTS, namespaces)
        self._store = store
        self._soon = soon
        self._table = LiveTable(NamePolicy(rules))
        self.record = None if record is None else record_store(record)
        self._keys: dict[tuple[str, str], ObjectKey] = {}
        self._hosts_of: dict[ObjectKey, set[ObjectKey]] = {}
        self._dirty: set[ObjectKey] = set()
        self._due = False
        self._renamed = False
        if self.record is not None:
            self.record.listen(self._record_changed, self._plan)
        self.models.listen(self._models_changed, self._plan)
        self.pods.listen(self._pods_changed, self._plan)
        self.hosts.listen(self._hosts_changed, self._plan)

    def stores(self) -> tuple[Store[Any], ...]:
        """Return the stores to follow."""
        stores: tuple[Store[Any], ...] = (self.models, self.pods, self.hosts)
        return stores if self.record is None else (*stores, self.record)

    def publish(self) -> None:
        """Update the routing table, and publish it if it has changed. Publishes nothing until all stores are listed."""
        self._due = False
        if not all(store.synced for store in self.stores()):
            return
        changed = [self._renamed, *(self._renew(key) for key in self._dirty)]
        self._dirty.clear()
        self._renamed = False
        if any(changed) or self._store.current is None:
            self._store.replace(self._table.snapshot())

    def _models_changed(self, changes: Sequence[Change[Served]]) -> None:
        for change in changes:
            if change.before is not None:
                self._keys.pop((change.key.namespace, change.before.uid), None)
            if change.after is not None:
                self._keys[change.key.namespace, change.after.uid] = change.key
            self._dirty.add(change.key)
        self._plan()

    def _pods_changed(self, changes: Sequence[Change[Replica | None]]) -> None:
        for change in changes:
            for pod in (change.before, change.after):
                if pod is not None and pod.owner is not None:
                    key = self._keys.get((pod.key.namespace, pod.owner.uid))
                    if key is not None:
                        self._dirty.add(key)
            host = self.hosts.get(change.key)  # a ModelHost has the name of its pod
            if host is not None:
                self._dirty.update(hosted.model for hosted in host.value)
        self._plan()

    def _hosts_changed(self, changes: Sequence[Change[tuple[Hosted, ...]]]) -> None:
        for change in changes:
            for hosted in change.before.value if change.before is not None else ():
                hosts = self._hosts_of[hosted.model]
                hosts.discard(change.key)
                if not hosts:
                    del self._hosts_of[hosted.model]
                self._dirty.add(hosted.model)
            for hosted in change.after.value if change.after is not None else ():
                self._hosts_of.setdefault(hosted.model, set()).add(change.key)
                self._dirty.add(hosted.model)
        self._plan()

    def _record_changed(self, changes: Sequence[Change[Mapping[str, str]]]) -> None:
        for change in changes:
            data = {} if change.after is None else change.after.value
            self._renamed = self._table.use_record(parse_record(data)) or self._renamed
        self._plan()

    def _plan(self) -> None:
        if not self._due:
            self._due = True
            self._soon(self.publish)

    def _renew(self, key: ObjectKey) -> bool:
        model = self.models.get(key)
        if model is None:
            return self._table.drop(key)
        return self._table.put(model_of(model, self.pods.owned(key.namespace, model.uid), self._hosted(key)))

    def _hosted(self, key: ObjectKey) -> Iterator[Replica | None]:
        for name in self._hosts_of.get(key, ()):
            host = self.hosts.get(name)
            if host is not None:
                yield hosted_replica(host, self.pods.get(name), key)


async def follow_cluster(
    namespaces: Sequence[str] | None, store: TableStore, rules: NameRules, record: ObjectKey | None
) -> None:
    """Follow the cluster of this process, or of the kubeconfig, until cancelled; `namespaces` None means all.

    `rules` and `record` decide which namespace may use which served name, as in `ClusterTable`. Raises NoClusterError
    if there is no cluster.
    """
    async with await connect() as api:
        await follow(api, *ClusterTable(namespaces, store, rules=rules, record=record).stores())
