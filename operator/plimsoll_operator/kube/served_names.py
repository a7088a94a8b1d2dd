"""Decides which ModelDeployment owns a served name: the oldest of those that claim it and may have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from plimsoll_cluster.served_names.policy import FREE, NamePolicy
from plimsoll_cluster.served_names.record import TIME_FORMAT, Kept, Record
from plimsoll_cluster.served_names.rules import Reserved
from plimsoll_cluster.store import Change, Store
from plimsoll_operator.spec.identity import Object, ObjectKey, key_of
from plimsoll_operator.spec.model_deployment import Spec, created, served_names
from plimsoll_operator.status.name_conflicts import NameConflict
from plimsoll_operator.status.reasons import Reason

ClaimAge = tuple[datetime, ObjectKey]
SHOWN = 5
"""Number of a rule's namespaces that a message lists."""


class NameRegistry:
    """The served names that all watched ModelDeployments claim, and who owns each. A lookup takes time in proportion to
    the number of claims to the name.
    """

    def __init__(self, policy: NamePolicy = FREE) -> None:
        self.policy = policy
        self._claims: dict[ObjectKey, tuple[ClaimAge, frozenset[str]]] = {}
        self._by_name: dict[str, dict[ObjectKey, ClaimAge]] = {}

    def follow(self, models: Store[Object], wake: Callable[[ObjectKey], None]) -> None:
        """Take the claims to names from a store, now and after each change.

        Calls `wake` with objects that may get or lose a name by another object's change.
        """

        def changed(changes: Sequence[Change[Object]]) -> None:
            for change in changes:
                after = change.after
                for key in self.forget(change.key) if after is None else self.note(after.value):
                    wake(key)

        for model in models:
            self.note(model.value)
        models.listen(changed)

    def note(self, item: Object) -> set[ObjectKey]:
        """Store the names that an object claims; return the other objects that may get or lose a name by this."""
        key = key_of(item)
        rank, names = (created(item), key), frozenset(served_names(item))
        if self._claims.get(key) == (rank, names):
            return set()
        before = self._drop(key)
        self._claims[key] = (rank, names)
        for name in names:
            self._by_name.setdefault(name, {})[key] = rank
        return self._sharing(before | names) - {key}

    def forget(self, key: ObjectKey) -> set[ObjectKey]:
        """Remove an object; return those that may get its names."""
        return self._sharing(self._drop(key)) - {key}

    def use_record(self, record: Record) -> set[ObjectKey]:
        """Use another record of served names; return the objects that may get or lose a name by this."""
        self.policy, names = self.policy.with_record(record)
        return self._sharing(names)

    def owner(self, name: str) -> ObjectKey | None:
        """Return the object that owns a name; None if no object claims it and may have it."""
        return min(self._allowed(name), default=(None, None))[1]

    def is_claimed(self, name: str, namespace: str) -> bool:
        """Return whether an object of a namespace claims a name."""
        return any(key.namespace == namespace for key in self._by_name.get(name, ()))

    def conflicts(self, spec: Spec) -> tuple[NameConflict, ...]:
        """Return the served names of a spec that it does not own, each with the reason."""
        mine = (spec.created, spec.key)
        found = []
        for name in spec.served_names:
            refusal = self.policy.refusal(name, spec.key.namespace)
            older = [rank for rank in self._allowed(name) if refusal is not None or rank < mine]
            if isinstance(refusal, Reserved):
                found.append(NameConflict(name, Reason.SERVED_NAME_RESERVED, _reserved(refusal)))
            elif older:
                found.append(NameConflict(name, Reason.SERVED_NAME_TAKEN, f"by {min(older)[1]}"))
            elif refusal is not None:
                found.append(NameConflict(name, Reason.SERVED_NAME_KEPT, _kept(refusal)))
        return tuple(found)

    def check_integrity(self) -> None:
        """Raise AssertionError if index and claims contradict each other."""
        claims = {(name, key, rank) for key, (rank, names) in self._claims.items() for name in names}
        assert claims == {(name, key, rank) for name, found in self._by_name.items() for key, rank in found.items()}
        assert all(self._by_name.values()), "a name that nobody claims is kept"

    def _allowed(self, name: str) -> list[ClaimAge]:
        """Return the claims to a name that the policy does not reject."""
        ranks = self._by_name.get(name, {}).values()
        return [rank for rank in ranks if self.policy.refusal(name, rank[1].namespace) is None]

    def _drop(self, key: ObjectKey) -> frozenset[str]:
        """Remove an object's claims and return its names."""
        _, names = self._claims.pop(key, (None, frozenset[str]()))
        for name in names:
            del self._by_name[name][key]
            if not self._by_name[name]:
                del self._by_name[name]
        return names

    def _sharing(self, names: Iterable[str]) -> set[ObjectKey]:
        return {key for name in names for key in self._by_name.get(name, ())}


def _reserved(refusal: Reserved) -> str:
    shown, more = refusal.namespaces[:SHOWN], len(refusal.namespaces) - SHOWN
    listed = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
    return f"by the rule {refusal.pattern} (for {listed or 'no namespace'})"


def _kept(refusal: Kept) -> str:
    until = "" if refusal.until is None else f" until {refusal.until.strftime(TIME_FORMAT)}"
    return f"for {refusal.namespace}{until}"
