"""Reads a pool's state from the API server for `explain`, without changing anything. Hosts are as in their
ModelHosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from plimsoll_cluster.connection import Connection
from plimsoll_cluster.kubernetes_source import KubernetesSource
from plimsoll_cluster.reflector import Reflector, UnreachableError
from plimsoll_cluster.store import Part, Store
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.placement.records.model import Model
from plimsoll_operator.placement.records.plan import Plan
from plimsoll_operator.placement.records.pool import PoolState
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.pools.hosts.client import HostClient
from plimsoll_operator.pools.hosts.host_registry import HostPod, HostRegistry
from plimsoll_operator.pools.hosts.inventory import stored_needs
from plimsoll_operator.pools.placer import Placer
from plimsoll_operator.pools.source_tokens import Found, SourceTokens, Token
from plimsoll_operator.pools.target_models import PoolMembers
from plimsoll_operator.spec.identity import Object, ObjectKey
from plimsoll_operator.spec.model_deployment import pool_of
from plimsoll_operator.spec.secret_item import SecretItem


class SnapshotError(Exception):
    """The state cannot be read; the message says why."""


async def read_snapshot(connection: Connection, model: ObjectKey, namespaces: Sequence[str] | None) -> PoolState:
    """Return the planner's input for the pool that a model names. Only objects in these namespaces are read; None: in
    all. Raise SnapshotError.
    """
    stores = Stores(namespaces, with_namespaces=namespaces is None)
    await _read(connection, stores.models, stores.pools, stores.hosts, stores.pods)
    if stores.namespaces is not None:
        await _read(connection, stores.namespaces)
    entry = stores.models.get(model)
    if entry is None:
        raise SnapshotError(f"there is no ModelDeployment {model}")
    key = pool_of(entry.value)
    if key is None:
        raise SnapshotError(
            f"{model} has dedicated pods, which the planner does not place: see `kubectl describe mdep {model.name}`"
        )
    state = await _state(stores, key)
    if model not in {one.key for one in state.models}:
        raise SnapshotError(f"{model} is not placed in RuntimePool {key}: {_why(entry.value)}")
    return state


async def _state(stores: Stores, key: ObjectKey) -> PoolState:
    """Return the state from a run of the operator's own placer, with a planner that plans nothing."""
    pool = stores.pools.get(key)
    if pool is None:
        raise SnapshotError(f"there is no RuntimePool {key}")
    members, names, registry = PoolMembers(), NameRegistry(), HostRegistry()
    for entry in stores.models:
        members.note(entry.value)
        names.note(entry.value)
    running = [pod for pod in stores.pods_of(pool) if not pod.dead]
    registry.keep(key, [HostPod(key, pod.name, pod.uid, pod.node, pod.address, 0) for pod in running])
    for known in registry:
        known.asked = True
    seen: list[PoolState] = []

    def look(state: PoolState) -> Plan:
        seen.append(state)
        return Plan((), ())

    placer = Placer(
        stores,
        registry,
        members,
        names,
        NodeRegistry(),
        _Unread(_no_secret, str, lambda: 0.0),
        look,
        _no_host,
        may_act=lambda: False,
        wake=_ignore,
        note=_ignore,
        replan=_ignore,
        draining=lambda uid: False,
    )
    await placer.reconcile(key)
    if not seen:
        raise SnapshotError(
            f"RuntimePool {key} cannot be used: see `kubectl describe rp {key.name} -n {key.namespace}`"
        )
    return _with_unread(seen[0], stores)


def _with_unread(state: PoolState, stores: Stores) -> PoolState:
    """Return the state with the revision of their hosts' copies for models with token Secrets. Their own revision
    depends on tokens, which are not read.
    """
    placed = {copy.model: copy.revision for host in state.hosts for copy in host.models}
    secret = {entry.key for entry in stores.models if "tokenSecret" in entry.value["spec"]["model"]}
    stored = (needs for host in stores.hosts for needs in stored_needs(host.value.get("status") or {}))
    sizes = {(model, revision): (need,) for model, revision, need in stored}

    def as_placed(model: Model) -> Model:
        if model.key not in secret or model.key not in placed:
            return model
        revision = placed[model.key]
        return replace(model, revision=revision, needs=sizes.get((model.key, revision), model.needs))

    return replace(state, models=tuple(map(as_placed, state.models)))


class _Unread(SourceTokens):
    """Reads no Secrets. No decision depends on their content."""

    async def of(self, items: Iterable[SecretItem]) -> Mapping[SecretItem, Found]:
        """Return an empty token for each item."""
        return {item: Token("", "") for item in items}


async def _read(connection: Connection, *stores: Store[Any]) -> None:
    """List each store once, in parallel."""
    parts = [part for store in stores for part in store.parts.values()]
    try:
        await asyncio.gather(*(_list(connection, part) for part in parts))
    except UnreachableError as error:
        raise SnapshotError(str(error)) from error


async def _list(connection: Connection, part: Part[Any]) -> None:
    await Reflector(KubernetesSource(connection, part.resource, part.namespace), part).list()


def _why(item: Object) -> str:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((c["message"] for c in conditions if c["type"] == "Placed"), "the operator has not reconciled it yet")


async def _no_secret(key: ObjectKey) -> Object | None:
    raise AssertionError(f"{key} must not be read")


def _no_host(pod: HostPod) -> HostClient:
    raise AssertionError(f"{pod.name} must not be polled")


def _ignore(_: object) -> None:
    """Do nothing."""
