"""Builds events (events.k8s.io) about ModelDeployments and RuntimePools, which `kubectl describe` shows."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from plimsoll_operator.spec.identity import API_VERSION, Object
from plimsoll_operator.status.reasons import Reason

CONTROLLER = "plimsoll.dev/operator"
NOTE_LIMIT = 1000


def build_event(
    item: Object, instance: str, reason: Reason, note: str, now: datetime, *, warning: bool = False
) -> dict[str, Any]:
    """Build an event about one of our objects."""
    meta = item["metadata"]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}", "namespace": meta["namespace"]},
        "eventTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": "Reconcile",
        "reason": reason.value,
        "note": note[:NOTE_LIMIT],
        "type": "Warning" if warning else "Normal",
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": item["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
    }
