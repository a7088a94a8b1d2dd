"""The operator's Lease: who holds it, and what happens without it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

NOT_FOUND = 404


def holder(namespace: str, name: str) -> str | None:
    """Who holds a Lease; None where nobody does, or where there is no such Lease."""
    leases: Any = client.CoordinationV1Api()
    try:
        found = leases.read_namespaced_lease(name, namespace).spec
    except ApiException as error:
        if error.status == NOT_FOUND:
            return None
        raise
    return found.holder_identity if found else None


def clear(namespace: str, name: str) -> None:
    """Take a Lease from a holder that is known to be dead, so that nobody has to wait until it expires."""
    leases: Any = client.CoordinationV1Api()
    leases.patch_namespaced_lease(name, namespace, {"spec": {"holderIdentity": ""}})


@contextlib.contextmanager
def deleted(namespace: str, name: str) -> Iterator[None]:
    """Delete a Lease before the body runs. Where nobody made it again, it is put back as Helm made it."""
    leases: Any = client.CoordinationV1Api()
    before = leases.read_namespaced_lease(name, namespace)
    metadata = {"name": name, "labels": before.metadata.labels, "annotations": before.metadata.annotations}
    leases.delete_namespaced_lease(name, namespace)
    try:
        yield
    finally:
        if holder(namespace, name) is None:
            with contextlib.suppress(ApiException):  # it is there, without a holder yet
                leases.create_namespaced_lease(namespace, {"metadata": metadata})
