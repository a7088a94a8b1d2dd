"""What a host is told of a model, and what the planner is: pure functions of a ModelDeployment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.build.arguments import claim_name, model_argument
from plimsoll_operator.placement.model import Model, Need, Replicas
from plimsoll_operator.pools.spec import PoolSpec
from plimsoll_operator.quantity import byte_count
from plimsoll_operator.reasons import Reason
from plimsoll_operator.spec import Spec

HASH_LENGTH = 16
NOT_THE_HOSTS = frozenset({"kvMemory", "threads"})
"""Fields of `spec.runtime` that a host is told otherwise, or not at all."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a model cannot be placed in its pool, whatever room there is."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model as its hosts are to have it. `body` is the `spec` of the host API's PUT."""

    spec: Spec
    revision: str
    body: Mapping[str, Any]


def wanted(spec: Spec, served_names: Collection[str], pool: PoolSpec) -> Wanted | Problem:
    """What is to be on the hosts of a pool. `served_names` are those that no older model has."""
    assert spec.placement is not None
    claim = claim_name(spec.source)
    if claim is not None and claim not in pool.claims:
        return Problem(
            Reason.CLAIM_NOT_MOUNTED,
            f"the pods of RuntimePool {pool.key.name} do not mount the claim {claim}; add to its "
            f"spec.template.volumes: {{name: {claim}, persistentVolumeClaim: {{claimName: {claim}}}}}",
        )
    runtime = {name: value for name, value in spec.options.items() if name not in NOT_THE_HOSTS}
    said: dict[str, Any] = {
        "source": f"file://{model_argument(spec.source)}" if claim is not None else spec.source,
        "modelRevision": spec.revision,
        "servedNames": sorted(served_names),
        "runtime": runtime,
        "minimumKv": spec.options.get("kvMemory"),
    }
    revision = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:HASH_LENGTH]
    counted = {
        "weight": float(spec.placement.weight),
        "priority": spec.placement.priority,
        "pinned": spec.placement.pinned,
    }
    return Wanted(spec, revision, {"revision": revision, **said, **counted})


def planned_model(found: Wanted, size: Need | None, moved: float | None) -> Model:
    """The same for the planner. Before a host has had it nobody knows its size: it counts as its least KV cache."""
    spec, placement = found.spec, found.spec.placement
    assert placement is not None
    kv = spec.options.get("kvMemory")
    least = byte_count(str(kv)) if kv is not None else 0
    count = spec.replicas
    return Model(
        key=spec.key,
        revision=found.revision,
        needs=(size or Need(weights=0, kv=least),),
        replicas=Replicas(desired=count, least=0, most=count),
        priority=placement.priority,
        weight=float(placement.weight),
        pinned=placement.pinned,
        moved=moved,
    )
