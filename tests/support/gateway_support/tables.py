"""The routing table of a cluster, built from scratch."""

from __future__ import annotations

from collections.abc import Iterable

from plimsoll_cluster.keys import ObjectKey
from plimsoll_cluster.resource import Entry
from plimsoll_cluster.served_names.policy import FREE, NamePolicy
from plimsoll_gateway.discovery.kubernetes_objects import Hosted, Served, hosted_replica, model_of
from plimsoll_gateway.discovery.routing_table import Replica, RoutingTable, build_table


def table_of(
    deployments: Iterable[Entry[Served]],
    pods: Iterable[Entry[Replica | None]],
    hosts: Iterable[Entry[tuple[Hosted, ...]]] = (),
    *,
    policy: NamePolicy = FREE,
) -> RoutingTable:
    """Build the routing table from ModelDeployments, runtime pods and ModelHosts.

    A pod belongs to the object of its namespace whose uid its controller reference has. A label does not suffice: it
    outlives a deleted model of the same name. Nor does the uid alone: a user who may create pods in another namespace
    could write it into one, and receive this model's requests.
    """
    by_owner: dict[tuple[str, str], list[Entry[Replica | None]]] = {}
    by_key: dict[ObjectKey, Entry[Replica | None]] = {}
    for pod in pods:
        by_key[pod.key] = pod
        if pod.owner is not None:
            by_owner.setdefault((pod.key.namespace, pod.owner.uid), []).append(pod)
    hosting = list(hosts)
    models = (
        model_of(
            item,
            by_owner.get((item.key.namespace, item.uid), []),
            [hosted_replica(host, by_key.get(host.key), item.key) for host in hosting],
        )
        for item in deployments
    )
    return build_table(models, policy)
