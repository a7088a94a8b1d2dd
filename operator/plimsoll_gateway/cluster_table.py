"""The table of a cluster's models, kept true by what is told of each object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from plimsoll_cluster.keys import ObjectKey
from plimsoll_cluster.store import Change, Store
from plimsoll_gateway.live_table import LiveTable
from plimsoll_gateway.objects import MODELS, PODS, Served, model_of
from plimsoll_gateway.table import Replica, TableStore


def _soon(publish: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(publish)


class ClusterTable:
    """Two stores, and the table that follows from them.

    Changes that come together become one table: `soon` calls what it is given a little later, once.
    """

    def __init__(
        self,
        namespaces: Sequence[str] | None,
        store: TableStore,
        soon: Callable[[Callable[[], None]], None] = _soon,
    ) -> None:
        self.models = Store(MODELS, namespaces)
        self.pods = Store(PODS, namespaces)
        self._store = store
        self._soon = soon
        self._table = LiveTable()
        self._keys: dict[tuple[str, str], ObjectKey] = {}
        self._dirty: set[ObjectKey] = set()
        self._due = False
        self.models.listen(self._models_changed, self._plan)
        self.pods.listen(self._pods_changed, self._plan)

    def publish(self) -> None:
        """Bring the table up to date, and show it if it is another one than before. Nothing is shown half listed."""
        self._due = False
        if not (self.models.synced and self.pods.synced):
            return
        changed = [self._renew(key) for key in self._dirty]
        self._dirty.clear()
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
        self._plan()

    def _plan(self) -> None:
        if not self._due:
            self._due = True
            self._soon(self.publish)

    def _renew(self, key: ObjectKey) -> bool:
        model = self.models.get(key)
        if model is None:
            return self._table.drop(key)
        return self._table.put(model_of(model, self.pods.owned(key.namespace, model.uid)))
