"""Which models a pool is to have, as the planner and the hosts are told of them."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_operator.identity import ObjectKey
from plimsoll_operator.kinds import Caches
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.placement.model import Model, Need, Replicas
from plimsoll_operator.pools.book import HostBook, Known
from plimsoll_operator.pools.members import Members
from plimsoll_operator.pools.picture import OF_STATE, Where
from plimsoll_operator.pools.remembered import Pool
from plimsoll_operator.pools.spec import PoolSpec
from plimsoll_operator.pools.wanted import Problem, Wanted, planned_model, wanted
from plimsoll_operator.spec import read_spec
from plimsoll_operator.template import SpecError


class Wishes:
    """Of every pool, from the ModelDeployments."""

    def __init__(self, caches: Caches, book: HostBook, members: Members, names: NameRegistry) -> None:
        self._caches = caches
        self._book = book
        self._members = members
        self._names = names

    def of(
        self, key: ObjectKey, spec: PoolSpec, pool: Pool, hosts: Sequence[Known]
    ) -> tuple[list[Model], dict[ObjectKey, Wanted]]:
        """What the planner is to place, and what hosts are told of each; what cannot be placed is noted."""
        models, wishes = [], {}
        pool.problems = {}
        for model in self._members.of(key):
            entry = self._caches.models.get(model)
            if entry is None or entry.deleting:
                continue
            try:
                read = read_spec(entry.value)
            except SpecError:
                models += self._as_they_are(model, hosts)  # an edit that cannot be used changes nothing that runs
                continue
            taken = {name for name, _ in self._names.holders(read)}
            found = wanted(read, [name for name in read.served_names if name not in taken], spec)
            if isinstance(found, Problem):
                pool.problems[model] = found
                models += self._as_they_are(model, hosts)
                continue
            wishes[model] = found
            models.append(planned_model(found, pool.sizes.get((model, found.revision)), pool.moved.get(model)))
        members = set(self._members.of(key))
        for model in sorted({model for known in hosts for model in known.entries} - members):
            if self._is_to_stay(model):
                models += self._as_they_are(model, hosts)
        return models, wishes

    def _is_to_stay(self, model: ObjectKey) -> bool:
        """Whether a model that leaves the pool answers nowhere else yet."""
        entry = self._caches.models.get(model)
        if entry is None or entry.deleting:
            return False
        if entry.value["spec"].get("replicas", 1) == 0:
            return False
        pool = self._members.pool_of(model)
        if pool is None:
            return not any(pod.ready for pod in self._caches.pods_of(entry))
        there = [known for known in self._book.of(pool) if model in known.entries]
        return not any(OF_STATE[known.entries[model].state] in (Where.ASLEEP, Where.RESIDENT) for known in there)

    def _as_they_are(self, model: ObjectKey, hosts: Sequence[Known]) -> list[Model]:
        """A model that is to stay where it is, as it is."""
        entries = [known.entries[model] for known in hosts if model in known.entries]
        if not entries:
            return []
        first = entries[0]
        need = Need(weights=first.weights, workspace=first.workspace, kv=first.kv, host=first.host_bytes)
        count = len(entries)
        return [Model(model, first.revision, (need,), Replicas(count, 0, count), first.priority)]
