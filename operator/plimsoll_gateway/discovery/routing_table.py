"""The gateway's view of the world: which model answers to which name, and where its replicas are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from plimsoll_cluster.keys import ObjectKey as ObjectKey
from plimsoll_cluster.served_names.policy import FREE, NamePolicy


@dataclass(frozen=True, slots=True)
class Replica:
    """One runtime that answers for a model.

    `url` is the scheme, host and port without a trailing slash. `names` are the served names it was started with: while
    a changed list of names rolls out, old and new replicas of one model answer to different ones. None means all the
    names of its model. `unheard`: it was ready when its node was last heard of, and its node is silent. `keeper`: a
    name for what it keeps that whoever comes in its place keeps after it, empty where nobody does. `files`: the name of
    the claim on which it has the folder of files and batches, empty where it has none. `revision`: of the pods of one
    model that were made alike; empty where nothing tells them apart. `share`: how many per cent of the model's requests
    those of its revision get together; None for what the others leave. `draining`: its model ends there, or makes room
    for another; a request may be held until it wakes again, or hear that it has gone.
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
        """Under which name gateways find what it keeps."""
        return self.keeper or self.id

    @property
    def may_answer(self) -> bool:
        """Whether it is worth asking for what it alone has: it is ready, or its node is silent and it was."""
        return self.ready or self.unheard

    def answers(self, served_name: str) -> bool:
        """Whether it was started with this name."""
        return self.names is None or served_name in self.names


@dataclass(frozen=True, slots=True)
class Model:
    """One ModelDeployment. `created`: seconds since the epoch; `message`: why it is not ready, or empty.

    `pooled`: it is in pods that it shares, among which it may be moved, so that for a moment none may have it.
    `scales_to`: as many replicas may be made of it as requests need; 0 where that is not so, or it is stopped.
    `stalled`: as it is wanted it cannot be, says the operator. `files`: the name of the claim on which its replicas are
    to keep files and batches, empty where they keep none.
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
    # What was found of it: the record does not change, and is asked again and again.
    _ready: dict[str | None, tuple[Replica, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def wakes(self) -> bool:
        """Whether a request may wait where no replica is ready: one will be made, or brought."""
        return (self.pooled or self.scales_to > 0) and not self.stalled

    @property
    def ready_replicas(self) -> tuple[Replica, ...]:
        """Those that are ready, by whatever name."""
        found = self._ready.get(None)
        if found is None:
            found = self._ready[None] = tuple(replica for replica in self.replicas if replica.ready)
        return found

    def ready_for(self, served_name: str) -> tuple[Replica, ...]:
        """The replicas that can take a request for this name, in a stable order.

        Where none is ready, those at which the model drains. Where there is none of these either, those whose nodes are
        silent: it is the cluster that may have lost sight of them, as after an outage of its API server, and they may
        serve on.
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
    """All models, and the owner of each served name that one may have."""

    models: tuple[Model, ...]
    owners: Mapping[str, Model]

    def find(self, served_name: str) -> Model | None:
        """The model that answers to a name, or None."""
        return self.owners.get(served_name)

    def names(self) -> tuple[str, ...]:
        """Every name that can be asked for, sorted."""
        return tuple(sorted(self.owners))

    def check_integrity(self, policy: NamePolicy = FREE) -> None:
        """Raise AssertionError where the records contradict each other, or `policy`."""
        keys = [model.key for model in self.models]
        assert len(keys) == len(set(keys)), f"a model twice: {keys}"
        assert keys == [m.key for m in sorted(self.models, key=age)], "models are not in order of age"
        claimed = {name for model in self.models for name in model.served_names}
        assert set(self.owners) <= claimed, "an owner without claim"
        for name in claimed:
            claims = [model for model in self.models if name in model.served_names]
            allowed = [model for model in claims if policy.refusal(name, model.key.namespace) is None]
            expected, owner = next(iter(allowed), None), self.owners.get(name)
            assert owner is expected, f"{name} belongs to {owner}, not to the oldest that may have it, {expected}"


class DuplicateModelError(ValueError):
    """Two models of one table have the same namespace and name."""


def build_table(models: Iterable[Model], policy: NamePolicy = FREE) -> RoutingTable:
    """Give each served name to the oldest model that claims it (by creation, then namespace, then name).

    `policy` refuses some of the claims. The result does not depend on the order of `models`. Raises DuplicateModelError
    for two models of one key.
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
    """The order in which models have a right to a name."""
    return (model.created, model.key)


class TableStore:
    """The newest table; None until the first one is known. Whoever answers a request reads it once."""

    def __init__(self) -> None:
        self.current: RoutingTable | None = None
        self._awaited: dict[str, asyncio.Event] = {}
        self._listeners: list[Callable[[RoutingTable], None]] = []

    def listen(self, listener: Callable[[RoutingTable], None]) -> None:
        """Call `listener` with each new table, once it is the current one."""
        self._listeners.append(listener)

    def find(self, served_name: str) -> Model | None:
        """The model that answers to a name now, or None."""
        return None if self.current is None else self.current.find(served_name)

    def replace(self, table: RoutingTable) -> None:
        """Make `table` what the next request sees, and wake those who wait for what it changes."""
        before, self.current = self.current, table
        for name in [name for name in self._awaited if before is None or before.find(name) != table.find(name)]:
            self._awaited.pop(name).set()
        for listener in self._listeners:
            listener(table)

    async def changed(self, served_name: str, seen: Model | None) -> Model | None:
        """Return what answers to a name once that is no longer `seen`; at once if it is not. No change is missed.

        Many may wait for one name; a change of other models wakes none of them.
        """
        while (found := self.find(served_name)) == seen:
            await self._awaited.setdefault(served_name, asyncio.Event()).wait()
        return found
