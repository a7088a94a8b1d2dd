"""Reads a RuntimePool as a frozen record, or says why that is impossible."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_operator.spec.identity import POOL_KIND, Object, ObjectKey, Owner, key_of
from plimsoll_operator.spec.namespace_selector import Selector, read_selector
from plimsoll_operator.spec.persistence import Files, Responses, check_stores, read_files, read_responses, rollout_of
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles
from plimsoll_operator.spec.quantity import byte_count
from plimsoll_operator.spec.rollout import Rollout
from plimsoll_operator.spec.template import (
    STARTUP_SECONDS,
    Accelerator,
    SpecError,
    Template,
    read_accelerator,
    read_template,
    text_of,
)

LINE, MINIMUM_RESIDENCY, DRAIN_SECONDS = "90%", 10, 30


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One RuntimePool. `line` is a share such as 90%, `sleepers` an amount of host memory.

    `namespaces` selects namespaces whose models the pool accepts in addition to its own's, None for no others; they
    share `shared_claims`. `own`: the object's own fields, if profiles or defaults of the installation added to them.
    """

    owner: Owner
    generation: int
    replicas: int
    cpu: str | None
    memory: str | None
    accelerator: Accelerator | None
    cpu_limit: str | None
    ephemeral_storage: str | None
    line: str
    sleepers: str
    minimum_residency: int
    drain: int
    template: Template
    rollout: Rollout
    namespaces: Selector | None = None
    shared_claims: frozenset[str] = frozenset()
    responses: Responses | None = None
    files: Files | None = None
    profile: str | None = None
    own: PoolSpec | None = None

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return self.owner.key

    @property
    def drain_seconds(self) -> int:
        """Seconds for running requests to end when a pod stops."""
        return self.drain

    @property
    def startup_seconds(self) -> int:
        """Seconds for a pod to start before the kubelet restarts it."""
        return self.template.startup_seconds or STARTUP_SECONDS

    @property
    def claims(self) -> dict[str, str]:
        """The template's claims, with the names of their volumes."""
        return self.template.claims


def read_pool(item: Object, profiles: Profiles = NO_PROFILES) -> PoolSpec:
    """Read an object that the API server accepted, and complete it from its profile and the installation's defaults.

    Raise SpecError for a spec with errors.
    """
    spec, key = item["spec"], key_of(item)
    resources, memory = spec["resources"], spec.get("memory", {})
    responses = read_responses(spec.get("responses"))
    own = PoolSpec(
        owner=Owner(key, item["metadata"]["uid"], POOL_KIND),
        generation=item["metadata"]["generation"],
        replicas=spec.get("replicas", 1),
        cpu=text_of(resources.get("cpu")),
        memory=text_of(resources.get("memory")),
        accelerator=read_accelerator(resources),
        cpu_limit=text_of(resources.get("cpuLimit")),
        ephemeral_storage=text_of(resources.get("ephemeralStorage")),
        line=memory.get("line", LINE),
        sleepers=str(memory.get("sleepers", 0)),
        minimum_residency=spec.get("eviction", {}).get("minimumResidencySeconds", MINIMUM_RESIDENCY),
        drain=spec.get("drainSeconds", DRAIN_SECONDS),
        template=read_template(spec.get("template", {})),
        rollout=rollout_of(spec.get("rollout", {}), responses),
        namespaces=read_selector(spec["namespaces"]) if "namespaces" in spec else None,
        shared_claims=frozenset(spec.get("sharedClaims", ())),
        responses=responses,
        files=read_files(spec.get("files")),
        profile=resources.get("profile"),
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
