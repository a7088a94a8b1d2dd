"""A connection to the API server that this process belongs to."""

from __future__ import annotations

from kubernetes.aio import client, config

from plimsoll_cluster.connection import Connection


class NoClusterError(Exception):
    """There is no cluster to talk to; the message says what was looked for."""


async def connect() -> Connection:
    """To the cluster that this process runs in, else to the kubeconfig's. Raises NoClusterError."""
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            await config.load_kube_config()  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            raise NoClusterError(f"neither inside a pod nor with a usable kubeconfig ({error})") from error
    return Connection(client.Configuration.get_default_copy())
