"""What operator and gateway both read from a pod's status, and how both address it."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_cluster.keys import Object


def conditions_of(item: Object) -> Mapping[str, Object]:
    """An object's conditions by type."""
    status = item.get("status") or {}
    return {condition["type"]: condition for condition in status.get("conditions") or ()}


def is_unheard(conditions: Mapping[str, Object]) -> bool:
    """Whether the node controller took a pod's readiness back because its node is silent.

    It changes this one condition's status and leaves the rest as the kubelet last wrote it. A kubelet takes back
    `ContainersReady` too, or gives a reason (a readiness gate).
    """
    ready, containers = conditions.get("Ready"), conditions.get("ContainersReady")
    if ready is None or containers is None:
        return False
    return ready.get("status") == "False" and not ready.get("reason") and containers.get("status") == "True"


def url_of(address: str, port: int) -> str:
    """Where a pod with this address listens, by HTTP; the address may be of IPv6."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
