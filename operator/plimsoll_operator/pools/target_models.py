"""The models that a pool should have, for planner and hosts; and the index of models by pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.placement.records.model import Model, Need, Replicas
from plimsoll_operator.pools.host_model_spec import HostModelSpec, host_model_spec, planned_model
from plimsoll_operator.pools.hosts.host_registry import HostRegistry, Known
from plimsoll_operator.pools.membership import refuse_namespace, refuse_options, refuse_source
from plimsoll_operator.pools.model_placement import OF_STATE, Problem, Where
from plimsoll_operator.pools.placer_state import PlacerState
from plimsoll_operator.pools.source_tokens import Found
from plimsoll_operator.spec.identity import Object, ObjectKey, key_of
from plimsoll_operator.spec.model_deployment import Spec, pool_of, read_spec
from plimsoll_operator.spec.runtime_pool import PoolSpec
from plimsoll_operator.spec.secret_item import SecretItem
from plimsoll_operator.spec.template import SpecError
from plimsoll_operator.status.name_conflicts import describe_conflicts


class PoolMembers:
    """The pool that each watched ModelDeployment names. A pool need not exist."""

    def __init__(self) -> None:
        self._pool_of: dict[ObjectKey, ObjectKey] = {}
        self._members: dict[ObjectKey, set[ObjectKey]] = {}

    def note(self, item: Object) -> set[ObjectKey]:
        """Store the pool of an object; return the affected pools, including the one that it leaves."""
        return self._put(key_of(item), pool_of(item))

    def forget(self, key: ObjectKey) -> set[ObjectKey]:
        """Remove an object; return the pool that it was in."""
        return self._put(key, None)

    def of(self, pool: ObjectKey) -> list[ObjectKey]:
        """Return the models that name a pool, sorted by key."""
        return sorted(self._members.get(pool, ()))

    def pool_of(self, model: ObjectKey) -> ObjectKey | None:
        """Return the pool that a model names; None for one with dedicated pods."""
        return self._pool_of.get(model)

    def of_namespace(self, namespace: str) -> set[ObjectKey]:
        """Return the pools of other namespaces that models of this namespace name."""
        return {
            pool
            for model, pool in self._pool_of.items()
            if model.namespace == namespace and pool.namespace != namespace
        }

    def check_integrity(self) -> None:
        """Raise AssertionError if the two directions of the index differ."""
        assert self._pool_of == {model: pool for pool, models in self._members.items() for model in models}
        assert all(self._members.values()), "a pool without members is kept"

    def _put(self, key: ObjectKey, pool: ObjectKey | None) -> set[ObjectKey]:
        before = self._pool_of.pop(key, None)
        if before is not None:
            self._members[before].discard(key)
            if not self._members[before]:
                del self._members[before]
        if pool is not None:
            self._pool_of[key] = pool
            self._members.setdefault(pool, set()).add(key)
        return {found for found in (before, pool) if found is not None}


@dataclass(slots=True)
class PoolTarget:
    """The models to place (`models`), their specs for hosts (`specs`), and why others cannot be placed (`problems`).

    `admitted`: models that may be on the pool's hosts: its own, and those that leave it and are not served elsewhere
    yet.
    """

    models: list[Model] = field(default_factory=list)
    specs: dict[ObjectKey, HostModelSpec] = field(default_factory=dict)
    problems: dict[ObjectKey, Problem] = field(default_factory=dict)
    admitted: set[ObjectKey] = field(default_factory=set)


class TargetModels:
    """Computes the target of each pool from the ModelDeployments."""

    def __init__(self, stores: Stores, registry: HostRegistry, members: PoolMembers, names: NameRegistry) -> None:
        self._stores = stores
        self._registry = registry
        self._members = members
        self._names = names

    def secrets(self, key: ObjectKey, spec: PoolSpec) -> list[SecretItem]:
        """Return the Secret items with source tokens that models of the pool name, if it accepts their namespaces."""
        found = []
        for model in self._members.of(key):
            entry = self._stores.models.get(model)
            if entry is None or self._refuse_namespace(model, spec) is not None:
                continue
            try:
                token = read_spec(entry.value).token
            except SpecError:
                continue  # `of` reports specs with errors.
            found += [token] if token is not None else []
        return found

    def of(
        self,
        key: ObjectKey,
        spec: PoolSpec,
        pool: PlacerState,
        hosts: Sequence[Known],
        tokens: Mapping[SecretItem, Found],
    ) -> PoolTarget:
        """Return the target of one pool."""
        target = PoolTarget()
        members = self._members.of(key)
        for model in members:
            self._ask(target, model, spec, pool, hosts, tokens)
        for model in sorted({model for known in hosts for model in known.entries} - set(members)):
            if self._is_to_stay(model, spec, hosts):
                target.admitted.add(model)
                target.models += self._as_they_are(model, hosts)
        return target

    def _ask(
        self,
        target: PoolTarget,
        model: ObjectKey,
        spec: PoolSpec,
        pool: PlacerState,
        hosts: Sequence[Known],
        tokens: Mapping[SecretItem, Found],
    ) -> None:
        entry = self._stores.models.get(model)
        if entry is None or entry.deleting:
            return
        problem = self._refuse_namespace(model, spec)
        if problem is not None:
            target.problems[model] = problem
            return
        try:
            read = read_spec(entry.value)
        except SpecError:
            target.admitted.add(model)
            target.models += self._as_they_are(model, hosts)  # A spec with errors changes nothing that runs.
            return
        found = self._wanted(read, spec, tokens)
        if isinstance(found, HostModelSpec):
            target.admitted.add(model)
            target.specs[model] = found
            target.models.append(planned_model(found, pool.sizes.get((model, found.revision)), pool.moved.get(model)))
            return
        target.problems[model] = found
        if found.keeps:
            target.admitted.add(model)
            target.models += self._as_they_are(model, hosts)

    def _wanted(self, read: Spec, spec: PoolSpec, tokens: Mapping[SecretItem, Found]) -> HostModelSpec | Problem:
        problem = refuse_source(read, spec) or refuse_options(read, spec)
        if problem is not None:
            return problem
        conflicts = self._names.conflicts(read)
        lost = {conflict.name for conflict in conflicts}
        names = [name for name in read.served_names if name not in lost]
        if not names:
            return Problem(*describe_conflicts(conflicts))
        token = tokens.get(read.token) if read.token is not None else None
        if isinstance(token, Problem):
            return token
        return host_model_spec(read, names, token)

    def _refuse_namespace(self, model: ObjectKey, spec: PoolSpec) -> Problem | None:
        return refuse_namespace(model, spec, self._stores.labels_of(model.namespace))

    def _is_to_stay(self, model: ObjectKey, spec: PoolSpec, hosts: Sequence[Known]) -> bool:
        """Return whether a model that names this pool no longer must stay on its hosts: it is not served elsewhere yet.

        False if it is deleted or stopped, or has not been admitted before, because a host could report any model.
        """
        entry = self._stores.models.get(model)
        if entry is None or entry.deleting:
            return False
        if entry.value["spec"].get("replicas", 1) == 0:
            return False
        if self._refuse_namespace(model, spec) is not None or not self._was_admitted(model, hosts):
            return False
        pool = self._members.pool_of(model)
        if pool is None:
            return not any(pod.ready for pod in self._stores.pods_of(entry))
        there = [known for known in self._registry.of(pool) if model in known.entries]
        return not any(OF_STATE[known.entries[model].state] in (Where.ASLEEP, Where.RESIDENT) for known in there)

    def _was_admitted(self, model: ObjectKey, hosts: Sequence[Known]) -> bool:
        """Return whether the pool accepted the model before: it is of the pool's namespace, or a ModelHost, which only
        an operator writes, says so.
        """
        if any(model.namespace == known.pod.pool.namespace for known in hosts):
            return True
        stored = [self._stores.hosts.get(known.pod.key) for known in hosts]
        return any(
            entry.get("admitted", False) and ObjectKey(entry["namespace"], entry["name"]) == model
            for host in stored
            if host is not None
            for entry in (host.value.get("status") or {}).get("models") or ()
        )

    def _as_they_are(self, model: ObjectKey, hosts: Sequence[Known]) -> list[Model]:
        """Return a list with the planner's model that keeps the copies as they are: revision, size and number of hosts
        as reported. It is empty if no host has the model.
        """
        entries = [known.entries[model] for known in hosts if model in known.entries]
        if not entries:
            return []
        first = entries[0]
        need = Need(weights=first.weights, workspace=first.workspace, kv=first.kv, host=first.host_bytes)
        count = len(entries)
        return [Model(model, first.revision, (need,), Replicas(count, 0, count), first.priority)]
