"""A client of the API server that this process belongs to."""

from __future__ import annotations

from kubernetes.aio import client, config

UNLIMITED = 0
"""Connections. A watch has one to itself, so with many namespaces any number would leave none for requests."""


class NoClusterError(Exception):
    """There is no cluster to talk to; the message says what was looked for."""


async def connect() -> client.ApiClient:
    """A client for the cluster that this process runs in, else for the kubeconfig's. Raises NoClusterError."""
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            await config.load_kube_config()  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            raise NoClusterError(f"neither inside a pod nor with a usable kubeconfig ({error})") from error
    settings = client.Configuration.get_default_copy()
    settings.connection_pool_maxsize = UNLIMITED
    return client.ApiClient(settings)
