"""The table from the cluster: follows ModelDeployments, pods and ModelHosts. Only this module needs Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_cluster.connect import connect
from plimsoll_cluster.source import follow
from plimsoll_gateway.cluster_table import ClusterTable
from plimsoll_gateway.table import TableStore


async def follow_cluster(namespaces: Sequence[str] | None, store: TableStore) -> None:
    """Follow the cluster of this process, or of the kubeconfig, for ever; `namespaces` None means all.

    Raises NoClusterError where neither is there.
    """
    async with await connect() as api:
        table = ClusterTable(namespaces, store)
        await follow(api, table.models, table.pods, table.hosts)
