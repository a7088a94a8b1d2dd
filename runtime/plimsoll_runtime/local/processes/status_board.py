"""The status of each process of a laptop run, and the gateway's routing table made of it."""

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
    """The life of one process slot."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    UNREADY = "not ready"  # it runs, and says that it cannot serve
    WAITING = "waiting"  # it has ended and will be started again
    FAILED = "failed"  # it has ended, and starting it again would not help
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Status:
    """One process slot now.

    `url` is where it listens, `pid` its process while there is one. `error` and `code` tell how the last process
    ended, `ends` how often one has; `wait` is in seconds until the next start, `took` from start to ready.
    `transfer` is how far a download is, `rate` its bytes a second.
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
        """The phase and what there is to say about it, in one line."""
        match self.phase:
            case Phase.LOADING:
                percent = "" if self.fraction is None else f" {self.fraction:.0%}"
                loaded = "" if self.transfer is None else f", {transfer_text(self.transfer, self.rate)}"
                return f"loading: {self.stage or 'model'}{percent}{loaded}"
            case Phase.WAITING:
                return f"{first_line(self.error)}; starting again in {self.wait:.1f} s"
            case Phase.FAILED:
                return f"failed: {first_line(self.error)}"
            case _:
                return str(self.phase.value)


def first_line(text: str) -> str:
    """The head of a text of several lines."""
    return text.split("\n", 1)[0]


Listener = Callable[[str, Status, Status], None]


class Board:
    """The statuses by slot id. Listeners get the id, the status before and the status now."""

    def __init__(self, slots: Iterable[str]) -> None:
        self._statuses = {slot: Status() for slot in slots}
        self._listeners: list[Listener] = []
        self._waiters: set[asyncio.Event] = set()

    @property
    def statuses(self) -> Mapping[str, Status]:
        """All of them, in the order of the slots."""
        return self._statuses

    def listen(self, listener: Listener) -> None:
        """Call `listener` after every change from now on."""
        self._listeners.append(listener)

    def report(self, slot: str, status: Status) -> None:
        """Record where a slot stands."""
        before = self._statuses[slot]
        if status == before:
            return
        self._statuses[slot] = status
        for listener in self._listeners:
            listener(slot, before, status)
        for waiter in self._waiters:
            waiter.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition over the statuses holds."""
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
