"""The upgrade queue: after an upgrade of Plimsoll, a few objects at a time roll to the new image.

An object keeps its place until only pods of the new image serve. One that stalls gives its place to others, and
continues without it. The queue is only in memory; after a restart, statuses show which rollouts have started.
"""

from __future__ import annotations

from typing import TypeVar

from plimsoll_operator.build.pod_revision import Fits
from plimsoll_operator.planning.pod_view import PodView, view
from plimsoll_operator.planning.pods import Observed
from plimsoll_operator.spec.identity import Object, ObjectKey, key_of
from plimsoll_operator.spec.workload import Workload
from plimsoll_operator.status.conditions import PROGRESSING
from plimsoll_operator.status.reasons import Reason

W = TypeVar("W", bound=Workload)


class UpgradeQueue:
    """At most `limit` objects roll at a time; the others wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: set[ObjectKey] = set()
        self._stalled: set[ObjectKey] = set()
        self._waiting: dict[ObjectKey, None] = {}

    def learn(self, item: Object) -> None:
        """Restore an object that is rolling by its status, before the first reconcile."""
        conditions = (item.get("status") or {}).get("conditions") or ()
        if any(c["type"] == PROGRESSING and c["reason"] == Reason.ROLLING for c in conditions):
            self._taken.add(key_of(item))

    def take(self, key: ObjectKey) -> bool:
        """Return whether an object may roll now. If not, it is added to the waiting ones."""
        if key not in self._taken and key not in self._stalled:
            if len(self._taken) >= self._limit:
                self._waiting[key] = None
                return False
            self._taken.add(key)
        self._waiting.pop(key, None)
        return True

    def stall(self, key: ObjectKey) -> list[ObjectKey]:
        """Let a stalled object continue without counting against the limit. Return the waiting objects that may roll
        instead.
        """
        if key not in self._taken:
            return []
        self._taken.discard(key)
        self._stalled.add(key)
        return self._next()

    def end(self, key: ObjectKey) -> list[ObjectKey]:
        """Remove an object that has rolled or was deleted. Return the waiting objects that may roll now."""
        self._stalled.discard(key)
        if key not in self._taken:
            return self.decline(key)
        self._taken.discard(key)
        return self._next()

    def decline(self, key: ObjectKey) -> list[ObjectKey]:
        """Remove an object that waits and need not roll. Return the waiting objects that may roll now."""
        if key not in self._waiting:
            return []
        del self._waiting[key]
        return self._next()

    def check_integrity(self) -> None:
        """Raise AssertionError if an object is in two states."""
        assert not self._taken & self._stalled
        assert not self._waiting.keys() & (self._taken | self._stalled)

    def _next(self) -> list[ObjectKey]:
        return list(self._waiting)[: max(0, self._limit - len(self._taken))]


def view_with_upgrades(
    spec: W, fit: Fits, observed: Observed, upgrades: UpgradeQueue
) -> tuple[PodView[W], list[ObjectKey]]:
    """Return the view of the pods, and the waiting objects that may roll now because this one left the queue.

    Pods that only an upgrade of Plimsoll has outdated are `held` until the queue admits the object.
    """
    seen = view(spec, fit, observed)
    if seen.needs_turn and not upgrades.take(spec.key):
        return view(spec, fit, observed, may_roll=False), []
    if seen.needs_turn:
        return seen, []
    return seen, upgrades.decline(spec.key) if seen.older else upgrades.end(spec.key)
