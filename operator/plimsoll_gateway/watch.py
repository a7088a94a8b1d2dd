"""The table from the cluster: follows ModelDeployments, pods and ModelHosts. Only this module needs Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_cluster.connection import connect
from plimsoll_cluster.keys import ObjectKey
from plimsoll_cluster.kubernetes_source import follow
from plimsoll_cluster.served_names.rules import NameRules
from plimsoll_gateway.cluster_table import ClusterTable
from plimsoll_gateway.table import TableStore


async def follow_cluster(
    namespaces: Sequence[str] | None, store: TableStore, rules: NameRules, record: ObjectKey | None
) -> None:
    """Follow the cluster of this process, or of the kubeconfig, until cancelled; `namespaces` None means all.

    `rules` and `record` decide which namespace may have which served name, as in `ClusterTable`.
    Raises NoClusterError where neither is there.
    """
    async with await connect() as api:
        await follow(api, *ClusterTable(namespaces, store, rules=rules, record=record).stores())
