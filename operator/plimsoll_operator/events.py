"""Events that `kubectl describe` shows: one for each transition and for each pod that is made or deleted."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from plimsoll_operator.identity import API_VERSION, KIND, Object
from plimsoll_operator.reasons import Reason
from plimsoll_operator.status import PROGRESSING, READY, Condition

CONTROLLER = "plimsoll.dev/operator"
NOTE_LIMIT = 1000
_CALM = frozenset({Reason.LOADING, Reason.WAITING_FOR_PODS, Reason.NO_READY_REPLICA, Reason.STOPPED, Reason.NOT_READY})


def build_event(item: Object, instance: str, reason: Reason, note: str, *, warning: bool = False) -> dict[str, Any]:
    """An event about a ModelDeployment."""
    meta = item["metadata"]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}", "namespace": meta["namespace"]},
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": "Reconcile",
        "reason": reason.value,
        "note": note[:NOTE_LIMIT],
        "type": "Warning" if warning else "Normal",
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
    }


def worth_telling(condition: Condition) -> bool:
    """Ready and Progressing repeat what the other conditions say, but for their good ends."""
    if condition.type in (READY, PROGRESSING):
        return bool(condition.status) or condition.reason in (Reason.SETTLED, Reason.INVALID_SPEC)
    return condition.status is not None


def is_warning(condition: Condition) -> bool:
    """Whether a person should look: something is false for more than lack of time."""
    return condition.status is False and condition.type != PROGRESSING and condition.reason not in _CALM
