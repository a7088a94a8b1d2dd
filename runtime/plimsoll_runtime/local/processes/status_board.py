"""The status of each process of a laptop run, and the gateway's routing table built from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from plimsoll_runtime.local.model import LocalModel
from plimsoll_runtime.utils.progress import Transfer, transfer_text


class Phase(Enum):
    """Phase of one process slot."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    UNREADY = "not ready"  # runs, but reports that it cannot serve
    WAITING = "waiting"  # has ended, will be restarted
    FAILED = "failed"  # has ended, a restart would not help
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Status:
    """Status of one process slot: a replica, the host process or the gateway, each of which may be restarted.

    `url` is its address, `pid` its process if there is one. `error` and `code` tell how the slot's last process ended,
    until the next one starts; `ends` is how many of its processes have ended. `wait` is the seconds until the next
    start, `took` the seconds from start to ready. `transfer` is the progress of a download, `rate` its bytes per
    second.
    """

    phase: Phase = Phase.STARTING
    url: str = ""
    pid: int | None = None
    stage: str = ""
    fraction: float | None = None
    error: str = ""
    code: int | None = None
    ends: int = 0
    wait: float = 0.0
    took: float = 0.0
    transfer: Transfer | None = None
    rate: float | None = None

    @property
    def detail(self) -> str:
        """The phase and its details, in one line."""
        match self.phase:
            case Phase.LOADING:
                percent = "" if self.fraction is None else f" {self.fraction:.0%}"
                loaded = "" if self.transfer is None else f", {transfer_text(self.transfer, self.rate)}"
                return f"loading: {self.stage or 'model'}{percent}{loaded}"
            case Phase.WAITING:
                return f"{first_line(self.error)}; restarting in {self.wait:.1f} s"
            case Phase.FAILED:
                return f"failed: {first_line(self.error)}"
            case _:
                return str(self.phase.value)


def first_line(text: str) -> str:
    """Return the first line of a text."""
    return text.split("\n", 1)[0]


Listener = Callable[[str, Status, Status], None]


class Board:
    """Statuses by slot id. Listeners are called as (slot, old status, new status)."""

    def __init__(self, slots: Iterable[str]) -> None:
        self._statuses = {slot: Status() for slot in slots}
        self._listeners: list[Listener] = []
        self._waiters: set[asyncio.Event] = set()

    @property
    def statuses(self) -> Mapping[str, Status]:
        """All statuses, in the order of the slots."""
        return self._statuses

    def listen(self, listener: Listener) -> None:
        """Call `listener` after every later change."""
        self._listeners.append(listener)

    def report(self, slot: str, status: Status) -> None:
        """Set a slot's status, and call the listeners if it changed."""
        before = self._statuses[slot]
        if status == before:
            return
        self._statuses[slot] = status
        for listener in self._listeners:
            listener(slot, before, status)
        for waiter in self._waiters:
            waiter.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds()` is true; it is called now and after each change of a status."""
        changed = asyncio.Event()
        self._waiters.add(changed)
        try:
            while not holds():
                await changed.wait()
                changed.clear()
        finally:
            self._waiters.discard(changed)


HOST_SLOT = "host"


def replica_slots(model: LocalModel) -> tuple[str, ...]:
    """Return the slot of each replica: the host's slot if the model is in the host. Names contain the namespace unless
    it is "default".
    """
    if model.in_host:
        return (HOST_SLOT,) if model.replicas else ()
    stem = model.name if model.namespace == "default" else f"{model.namespace}.{model.name}"
    return tuple(f"{stem}-{index}" for index in range(model.replicas))


def table_document(models: Sequence[LocalModel], statuses: Mapping[str, Status], began: datetime) -> dict[str, Any]:
    """Return the gateway's routing table. All models get `began` as creation time, which only decides between two
    models of one served name; a run has no such models.
    """
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
        return "the model is scaled to zero (spec.replicas: 0)"
    if any(status.phase is Phase.READY for status in statuses):
        return ""
    return statuses[0].detail
