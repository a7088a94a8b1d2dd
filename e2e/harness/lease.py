"""The operator's Lease: its holder, and how to remove it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

NOT_FOUND = 404


def holder(namespace: str, name: str) -> str | None:
    """Return the holder of a Lease, or None if it has no holder or does not exist."""
    leases: Any = client.CoordinationV1Api()
    try:
        found = leases.read_namespaced_lease(name, namespace).spec
    except ApiException as error:
        if error.status == NOT_FOUND:
            return None
        raise
    return found.holder_identity if found else None


def clear(namespace: str, name: str) -> None:
    """Remove the holder from a Lease, so that the next one need not wait until it expires. The holder must be dead."""
    leases: Any = client.CoordinationV1Api()
    leases.patch_namespaced_lease(name, namespace, {"spec": {"holderIdentity": ""}})


@contextlib.contextmanager
def deleted(namespace: str, name: str) -> Iterator[None]:
    """Delete a Lease on entry. On exit, restore it as Helm created it, unless it was recreated."""
    leases: Any = client.CoordinationV1Api()
    before = leases.read_namespaced_lease(name, namespace)
    metadata = {"name": name, "labels": before.metadata.labels, "annotations": before.metadata.annotations}
    leases.delete_namespaced_lease(name, namespace)
    try:
        yield
    finally:
        if holder(namespace, name) is None:
            with contextlib.suppress(ApiException):  # it exists, without a holder
                leases.create_namespaced_lease(namespace, {"metadata": metadata})
