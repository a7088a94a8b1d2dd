"""Reads a ModelDeployment as a frozen record, or says why that is impossible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from plimsoll_operator.spec.identity import Object, ObjectKey, Owner, key_of
from plimsoll_operator.spec.parallel import check_accelerator, check_shm, read_parallel
from plimsoll_operator.spec.persistence import check_stores
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles
from plimsoll_operator.spec.quantity import byte_count
from plimsoll_operator.spec.scaling import Scaling, read_scaling
from plimsoll_operator.spec.secret_item import SecretItem, read_secret_item
from plimsoll_operator.spec.template import SpecError, claim_name
from plimsoll_operator.spec.workload import Workload, read_workload

HISTORY = 10
"""Number of unused revisions to keep, as for a Deployment."""
DRAIN_SECONDS = 30
"""The runtime's default; a contract test compares them."""
OF_ACCELERATORS = frozenset(
    {"triton", "flashinfer", "flash-attn-3", "flash-attn", "cudnn-paged", "cudnn", "torch-flash"}
)
"""Attention backends that need an accelerator in the model, its profile or its pool."""


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    """The pool of a model, and its priority there. `namespace` is the pool's."""

    namespace: str
    pool: str
    priority: int = 0
    weight: int = 1
    pinned: bool = False

    @property
    def key(self) -> ObjectKey:
        """Namespace and name of the RuntimePool."""
        return ObjectKey(self.namespace, self.pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec(Workload):
    """One ModelDeployment.

    `replicas`: the wanted number; with `scaling`, the one in its status. A stopped model (0 replicas) has no `scaling`.
    `trust_remote_code`: True if code from the model's repository may run, else None. A pod's revision leaves out fields
    that are None, so that writing a default into a spec replaces no pods.
    """

    created: datetime
    source: str
    revision: str | None
    served_names: tuple[str, ...]
    options: Mapping[str, Any]
    placement: PlacementSpec | None = None
    history: int = HISTORY
    scaling: Scaling | None = None
    token: SecretItem | None = None
    trust_remote_code: bool | None = None

    @property
    def idle(self) -> bool:
        """Whether it has been scaled to zero."""
        return self.scaling is not None and self.replicas == 0

    def scaled(self, replicas: int) -> Spec:
        """Return the spec with this number of replicas."""
        return replace(self, replicas=replicas)

    @property
    def drain_seconds(self) -> int:
        """Seconds for running requests to end when a pod stops."""
        return int(self.options.get("drainSeconds", DRAIN_SECONDS))


def served_names(item: Object) -> tuple[str, ...]:
    """Return the names by which requests ask for an object, even if its spec has errors."""
    return tuple(item["spec"]["model"].get("servedNames") or [item["metadata"]["name"]])


def created(item: Object) -> datetime:
    """Return when an object was created."""
    return datetime.fromisoformat(item["metadata"]["creationTimestamp"])


def read_spec(item: Object, profiles: Profiles = NO_PROFILES) -> Spec:
    """Read an object that the API server accepted, and complete it from its profile and the installation's defaults.

    A spec with `placement` is not completed, because it has no dedicated pods. Raise SpecError for a spec with errors.
    """
    spec, key = item["spec"], key_of(item)
    scaling, options = _scaling(spec), spec.get("runtime", {})
    own = Spec(
        owner=Owner(key, item["metadata"]["uid"]),
        created=created(item),
        source=spec["model"]["source"],
        revision=spec["model"].get("revision"),
        served_names=served_names(item),
        replicas=_replicas(item, scaling),
        options=options,
        placement=_placement(spec.get("placement"), key, options),
        history=spec.get("revisionHistoryLimit", HISTORY),
        scaling=scaling,
        token=read_secret_item(spec["model"].get("tokenSecret"), key.namespace),
        parallel=read_parallel(spec.get("parallel"), key.namespace),
        trust_remote_code=spec["model"].get("trustRemoteCode") or None,
        **read_workload(item),
    )
    source = claim_name(own.source)
    check_stores(own.responses, own.files, {*own.template.claims, *({source} if source else ())})
    found = profiles.merged(own, ("HF_TOKEN",) if own.token else ()) if own.placement is None else own
    _check_memory(found)
    _check_accelerator(found)
    if found.placement is None:
        check_accelerator(found.parallel, found.accelerator)
        check_shm(found.parallel, found.template.shm_size, found.memory, found.options.get("kvMemory"))
    return found


def pool_of(item: Object) -> ObjectKey | None:
    """Return the RuntimePool of an object, even if its spec has errors; None if it has dedicated pods."""
    placement = item["spec"].get("placement")
    if placement is None:
        return None
    return ObjectKey(placement.get("namespace", item["metadata"]["namespace"]), placement["pool"])


def _scaling(spec: Mapping[str, Any]) -> Scaling | None:
    """Return `spec.scaling`; None without it, and for a stopped model (0 replicas). In a pool, one replica stays placed
    while the model sleeps.
    """
    found = read_scaling(spec.get("scaling")) if spec.get("replicas", 1) else None
    return found if found is None or "placement" not in spec else replace(found, placed=1)


def _replicas(item: Object, scaling: Scaling | None) -> int:
    """Return the replicas of the spec or, with scaling, the number in its status."""
    if scaling is None:
        said: int = item["spec"].get("replicas", 1)
        return said
    return scaling.clamped((item.get("status") or {}).get("desiredReplicas", max(1, scaling.least)))


def _placement(values: Mapping[str, Any] | None, key: ObjectKey, options: Mapping[str, Any]) -> PlacementSpec | None:
    if values is None:
        return None
    if str(options.get("kvMemory", "")).endswith("%"):
        raise SpecError(
            f"runtime.kvMemory {options['kvMemory']} is a share, but with placement it is the minimum KV cache of the "
            "model: write an amount such as 512Mi"
        )
    return PlacementSpec(
        namespace=values.get("namespace", key.namespace),
        pool=values["pool"],
        priority=values.get("priority", 0),
        weight=values.get("weight", 1),
        pinned=values.get("pinned", False),
    )


def _check_memory(spec: Spec) -> None:
    """Raise SpecError if an absolute KV cache size leaves no memory for weights on CPUs."""
    kv_memory = spec.options.get("kvMemory")
    if spec.memory is None or spec.accelerator or kv_memory is None or kv_memory.endswith("%"):
        return
    # An amount is of all pods of a replica together.
    if byte_count(kv_memory) >= byte_count(spec.memory) * spec.pods_per_replica:
        raise SpecError(
            f"runtime.kvMemory {kv_memory} leaves nothing of resources.memory {spec.memory} for the weights: "
            "lower kvMemory or raise memory"
        )


def _check_accelerator(spec: Spec) -> None:
    """Raise SpecError if a profile lacks the accelerator that the attention backend needs, which the CRD schema cannot
    check.
    """
    backend = spec.options.get("attentionBackend")
    if spec.profile is not None and backend in OF_ACCELERATORS and spec.accelerator is None:
        raise SpecError(
            f"runtime.attentionBackend {backend} needs an accelerator, and resources.profile {spec.profile} has none: "
            "leave it out, or choose a profile with one"
        )
