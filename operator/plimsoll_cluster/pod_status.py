"""Parts of a pod's status that operator and gateway read, and the URL of a pod."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_cluster.keys import Object


def conditions_of(item: Object) -> Mapping[str, Object]:
    """Return the conditions of an object by type."""
    status = item.get("status") or {}
    return {condition["type"]: condition for condition in status.get("conditions") or ()}


def is_unheard(conditions: Mapping[str, Object]) -> bool:
    """Return whether the node controller set a pod's readiness to False because its node does not report.

    The node controller changes only the status of the condition Ready. A kubelet that sets Ready to False also sets
    `ContainersReady` to False, or writes a reason (if a readiness gate fails).
    """
    ready, containers = conditions.get("Ready"), conditions.get("ContainersReady")
    if ready is None or containers is None:
        return False
    return ready.get("status") == "False" and not ready.get("reason") and containers.get("status") == "True"


def url_of(address: str, port: int) -> str:
    """Return the HTTP base URL of a pod. `address` is an IPv4 or IPv6 address."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
