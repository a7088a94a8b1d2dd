"""The gateway's table for a laptop run (read by `plimsoll_gateway --table`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from plimsoll_runtime.local.board import Phase, Status
from plimsoll_runtime.local.model import LocalModel

HOST_SLOT = "host"


def replica_slots(model: LocalModel) -> tuple[str, ...]:
    """The slot of each replica: the host's where it shares that. The namespace is part only of an unusual one."""
    if model.in_host:
        return (HOST_SLOT,) if model.replicas else ()
    stem = model.name if model.namespace == "default" else f"{model.namespace}.{model.name}"
    return tuple(f"{stem}-{index}" for index in range(model.replicas))


def table_document(models: Sequence[LocalModel], statuses: Mapping[str, Status], began: datetime) -> dict[str, Any]:
    """The table. All models are as old as the run: their names do not conflict, so their age decides nothing."""
    return {"models": [_entry(model, statuses, began) for model in models]}


def _entry(model: LocalModel, statuses: Mapping[str, Status], created: datetime) -> dict[str, Any]:
    known = {slot: statuses[slot] for slot in replica_slots(model)}
    return {
        "namespace": model.namespace,
        "name": model.name,
        "servedNames": list(model.served_names),
        "created": created.isoformat(),
        "message": _why_not_ready(list(known.values())),
        "files": model.stores.files_claim or "",
        "replicas": [
            {"id": slot, "url": status.url, "ready": status.phase is Phase.READY}
            for slot, status in known.items()
            if status.url
        ],
    }


def _why_not_ready(statuses: Sequence[Status]) -> str:
    if not statuses:
        return "it is scaled to zero (spec.replicas: 0)"
    if any(status.phase is Phase.READY for status in statuses):
        return ""
    return statuses[0].detail
