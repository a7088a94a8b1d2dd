"""Converts a ModelDeployment to a host's model spec, and to the planner's model: pure functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll_operator.build.arguments import claim_name, model_argument
from plimsoll_operator.placement.records.model import Model, Need, Replicas
from plimsoll_operator.pools.source_tokens import Token
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.quantity import byte_count

HASH_LENGTH = 16
NOT_THE_HOSTS = frozenset({"kvMemory", "threads"})
"""Fields of `spec.runtime` that are sent to a host in another form, or not at all."""


@dataclass(frozen=True, slots=True)
class HostModelSpec:
    """What a model's hosts get. `body` is the `spec` of the host API's PUT, including the token for the source if there
    is one.
    """

    spec: Spec
    revision: str
    body: Mapping[str, Any] = field(repr=False)

    def hide(self, text: str) -> str:
        """Return a host's text without the token that was sent to it."""
        token = self.body.get("token")
        return text.replace(token, "***") if token else text


def host_model_spec(spec: Spec, served_names: Collection[str], token: Token | None = None) -> HostModelSpec:
    """Return the spec for the hosts of a pool. `served_names` are those that the model owns.

    Another token makes another revision, so that hosts get it; the token cannot be recovered from a revision. A model
    of another namespace without a token is fetched without any, not with the pool's own.
    """
    assert spec.placement is not None
    claim = claim_name(spec.source)
    runtime = {name: value for name, value in spec.options.items() if name not in NOT_THE_HOSTS}
    said: dict[str, Any] = {
        "source": f"file://{model_argument(spec.source)}" if claim is not None else spec.source,
        "modelRevision": spec.revision,
        "servedNames": sorted(served_names),
        "runtime": runtime,
        "minimumKv": spec.options.get("kvMemory"),
    }
    marked = said if token is None else {**said, "token": token.mark}
    revision = hashlib.sha256(json.dumps(marked, sort_keys=True).encode()).hexdigest()[:HASH_LENGTH]
    counted = {
        "weight": float(spec.placement.weight),
        "priority": spec.placement.priority,
        "pinned": spec.placement.pinned,
    }
    apart = spec.placement.namespace != spec.key.namespace
    secret = {"token": token.value} if token is not None else {"token": ""} if apart else {}
    return HostModelSpec(spec, revision, {"revision": revision, **said, **counted, **secret})


def planned_model(found: HostModelSpec, size: Need | None, moved: float | None) -> Model:
    """Return the planner's model. `size`: as hosts have reported it; None before that: then only the minimum KV cache
    counts. `moved`: when a host last accepted a move of it, in seconds since the epoch.
    """
    spec, placement = found.spec, found.spec.placement
    assert placement is not None
    kv = spec.options.get("kvMemory")
    least = byte_count(str(kv)) if kv is not None else 0
    count = spec.replicas
    return Model(
        key=spec.key,
        revision=found.revision,
        needs=(size or Need(weights=0, kv=least),),
        replicas=Replicas(desired=count, least=0 if spec.scaling is None else spec.scaling.least, most=count),
        priority=placement.priority,
        weight=float(placement.weight),
        pinned=placement.pinned,
        moved=moved,
    )
