"""The routing table: the model of each served name, and the addresses of its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from plimsoll_cluster.keys import ObjectKey as ObjectKey
from plimsoll_cluster.objectives import NO_OBJECTIVES, Objectives
from plimsoll_cluster.served_names.policy import FREE, NamePolicy


@dataclass(frozen=True, slots=True)
class Replica:
    """One runtime that serves a model.

    `url`: scheme, host and port without a trailing slash.
    `names`: the served names it was started with; None means all names of its model. While a changed list of names
    rolls out, replicas of one model differ.
    `unheard`: it was ready, but its node does not report.
    `keeper`: a name for its stored data, which its replacement takes over; empty if no replacement does.
    `files`: the PersistentVolumeClaim (NAMESPACE/CLAIM) of its files and batches; empty if it has none.
    `revision`: the revision of its pod; empty if revisions are not distinguished.
    `share`: if its revision is the model's canary, the per cent of the model's requests that the revision gets, else
    None.
    `draining`: its model is ending there or is being evicted; a request may wait until the model wakes again, or fail
    because it is gone.
    """

    id: str
    url: str
    ready: bool
    names: frozenset[str] | None = None
    unheard: bool = False
    revision: str = ""
    share: int | None = None
    draining: bool = False
    keeper: str = ""
    files: str = ""

    @property
    def keeps_as(self) -> str:
        """The name under which gateways find its stored data."""
        return self.keeper or self.id

    @property
    def may_answer(self) -> bool:
        """Whether to send it requests that only it can answer: it is ready, or its node does not report and it was."""
        return self.ready or self.unheard

    def answers(self, served_name: str) -> bool:
        """Return whether it serves this name of its model."""
        return self.names is None or served_name in self.names


@dataclass(frozen=True, slots=True)
class Model:
    """One ModelDeployment. `created`: seconds since the epoch. `message`: why it is not ready, or empty.

    `pooled`: it runs in shared pods and may move among them, so that for a moment no pod may have it.
    `scales_to`: the most replicas that requests can scale it to; 0 if they cannot, or if it is stopped.
    `stalled`: the operator reports that the spec cannot be fulfilled.
    `files`: the PersistentVolumeClaim (NAMESPACE/CLAIM) for files and batches of its replicas; empty if they keep none.
    `objectives`: what its users may rely on.
    """

    key: ObjectKey
    served_names: tuple[str, ...]
    created: float
    message: str
    replicas: tuple[Replica, ...]
    pooled: bool = False
    scales_to: int = 0
    stalled: bool = False
    files: str = ""
    objectives: Objectives = NO_OBJECTIVES
    # Cached results: the record is immutable and read often.
    _ready: dict[str | None, tuple[Replica, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def wakes(self) -> bool:
        """Whether a request may wait without a ready replica: one will be created or woken."""
        return (self.pooled or self.scales_to > 0) and not self.stalled

    @property
    def ready_replicas(self) -> tuple[Replica, ...]:
        """The replicas that are ready, under any name."""
        found = self._ready.get(None)
        if found is None:
            found = self._ready[None] = tuple(replica for replica in self.replicas if replica.ready)
        return found

    def ready_for(self, served_name: str) -> tuple[Replica, ...]:
        """Return the replicas that can serve requests for this name, in a stable order.

        These are the ready ones at which the model does not drain. If there are none, returns the ready ones at which
        it drains. If there are none of these either, returns those whose nodes do not report: the control plane may
        have lost contact, as after an outage of the API server, while they still serve.
        """
        found = self._ready.get(served_name)
        if found is None:
            found = self._find_ready(served_name)
            if served_name in self.served_names:
                self._ready[served_name] = found
        return found

    def _find_ready(self, served_name: str) -> tuple[Replica, ...]:
        named = [replica for replica in self.replicas if replica.answers(served_name)]
        ready = tuple(r for r in named if r.ready)
        return tuple(r for r in ready if not r.draining) or ready or tuple(r for r in named if r.unheard)


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """All models, and the owner of each served name."""

    models: tuple[Model, ...]
    owners: Mapping[str, Model]

    def find(self, served_name: str) -> Model | None:
        """Return the model of a served name, or None."""
        return self.owners.get(served_name)

    def names(self) -> tuple[str, ...]:
        """Return all served names, sorted."""
        return tuple(sorted(self.owners))

    def check_integrity(self, policy: NamePolicy = FREE) -> None:
        """Raise AssertionError if the records contradict each other or `policy`."""
        keys = [model.key for model in self.models]
        assert len(keys) == len(set(keys)), f"duplicate models: {keys}"
        assert keys == [m.key for m in sorted(self.models, key=age)], "models are not in order of age"
        claimed = {name for model in self.models for name in model.served_names}
        assert set(self.owners) <= claimed, "a name has an owner without a claim"
        for name in claimed:
            claims = [model for model in self.models if name in model.served_names]
            allowed = [model for model in claims if policy.refusal(name, model.key.namespace) is None]
            expected, owner = next(iter(allowed), None), self.owners.get(name)
            assert owner is expected, f"{name} belongs to {owner}, not to the oldest allowed claim, {expected}"


class DuplicateModelError(ValueError):
    """Two models of one table have the same namespace and name."""


def build_table(models: Iterable[Model], policy: NamePolicy = FREE) -> RoutingTable:
    """Assign each served name to the oldest model that claims it (by creation time, then namespace, then name).

    `policy` refuses some of the claims. The result does not depend on the order of `models`. Raises DuplicateModelError
    for two models with one key.
    """
    ordered = tuple(sorted(models, key=age))
    owners: dict[str, Model] = {}
    keys: set[ObjectKey] = set()
    for model in ordered:
        if model.key in keys:
            raise DuplicateModelError(f"model {model.key} is listed twice")
        keys.add(model.key)
        for name in model.served_names:
            if name not in owners and policy.refusal(name, model.key.namespace) is None:
                owners[name] = model
    return RoutingTable(ordered, MappingProxyType(owners))


def age(model: Model) -> tuple[float, ObjectKey]:
    """Return the key that sorts models by age, the order in which they get contested names."""
    return (model.created, model.key)


class TableStore:
    """The current routing table; None until the first one is known. Read it once for each request."""

    def __init__(self) -> None:
        self.current: RoutingTable | None = None
        self._awaited: dict[str, asyncio.Event] = {}
        self._listeners: list[Callable[[RoutingTable], None]] = []

    def listen(self, listener: Callable[[RoutingTable], None]) -> None:
        """Call `listener` with each new table after it has become the current one."""
        self._listeners.append(listener)

    def find(self, served_name: str) -> Model | None:
        """Return the model of a served name, or None."""
        return None if self.current is None else self.current.find(served_name)

    def replace(self, table: RoutingTable) -> None:
        """Make `table` the current one, and wake the waits for names that it changes."""
        before, self.current = self.current, table
        for name in [name for name in self._awaited if before is None or before.find(name) != table.find(name)]:
            self._awaited.pop(name).set()
        for listener in self._listeners:
            listener(table)

    async def changed(self, served_name: str, seen: Model | None) -> Model | None:
        """Wait until the model of a name differs from `seen`, and return it. No change is missed.

        Any number of tasks may wait for one name; changes of other models do not wake them.
        """
        while (found := self.find(served_name)) == seen:
            await self._awaited.setdefault(served_name, asyncio.Event()).wait()
        return found
