"""Reads a RuntimePool as a frozen record, or says why that is impossible."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_operator.spec.identity import POOL_KIND, Object, Owner, key_of
from plimsoll_operator.spec.namespace_selector import Selector, read_selector
from plimsoll_operator.spec.persistence import check_stores
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles
from plimsoll_operator.spec.quantity import byte_count
from plimsoll_operator.spec.template import SpecError
from plimsoll_operator.spec.workload import Workload, read_workload

LINE, MINIMUM_RESIDENCY, DRAIN_SECONDS = "90%", 10, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec(Workload):
    """One RuntimePool. `line`: share of a device's memory for awake models, such as 90%. `sleepers`: amount of host
    memory for the weights of sleeping models. `minimum_residency`, `drain`: seconds.

    `namespaces` selects other namespaces whose models the pool accepts, None for none. Models of these namespaces may
    load from `shared_claims`.
    """

    line: str
    sleepers: str
    minimum_residency: int
    drain: int
    namespaces: Selector | None = None
    shared_claims: frozenset[str] = frozenset()

    @property
    def drain_seconds(self) -> int:
        """Seconds for running requests to end when a pod stops."""
        return self.drain

    @property
    def claims(self) -> dict[str, str]:
        """The PersistentVolumeClaims of the template: claim name -> name of its volume."""
        return self.template.claims


def read_pool(item: Object, profiles: Profiles = NO_PROFILES) -> PoolSpec:
    """Read an object that the API server accepted, and complete it from its profile and the installation's defaults.

    Raise SpecError for a spec with errors.
    """
    spec, memory = item["spec"], item["spec"].get("memory", {})
    own = PoolSpec(
        owner=Owner(key_of(item), item["metadata"]["uid"], POOL_KIND),
        replicas=spec.get("replicas", 1),
        line=memory.get("line", LINE),
        sleepers=str(memory.get("sleepers", 0)),
        minimum_residency=spec.get("eviction", {}).get("minimumResidencySeconds", MINIMUM_RESIDENCY),
        drain=spec.get("drainSeconds", DRAIN_SECONDS),
        namespaces=read_selector(spec["namespaces"]) if "namespaces" in spec else None,
        shared_claims=frozenset(spec.get("sharedClaims", ())),
        **read_workload(item),
    )
    pool = profiles.merged(own)
    _check_memory(pool)
    check_stores(pool.responses, pool.files, pool.claims)
    return pool


def _check_memory(pool: PoolSpec) -> None:
    if pool.memory is None:
        raise SpecError(
            "resources.memory is missing: the models of a pool share it; set it in the pool or in its profile"
        )
    if byte_count(pool.sleepers) >= byte_count(pool.memory):
        raise SpecError(
            f"memory.sleepers {pool.sleepers} leaves nothing of resources.memory {pool.memory} for models that are "
            "awake: lower sleepers or raise resources.memory"
        )
