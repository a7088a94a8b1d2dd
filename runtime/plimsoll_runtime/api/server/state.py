"""The phase of a server's life, and whether it may admit a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from plimsoll_runtime.api.http.errors import ApiError, unavailable
from plimsoll_runtime.api.model_directory import ModelTable, ModelView
from plimsoll_runtime.api.server.credentials import ApiKeys, Gateways, Tenants
from plimsoll_runtime.api.telemetry.metrics_key import metrics_key
from plimsoll_runtime.api.telemetry.start_reporter import StartReporter
from plimsoll_runtime.api.telemetry.step_reporter import StepReporter
from plimsoll_runtime.engine.protocol.messages import EngineStats
from plimsoll_runtime.errors import ErrorKind, PlimsollError
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.utils.progress import Transfer
from plimsoll_runtime.utils.start_record import StartRecord


class Phase(Enum):
    """The value is the status in /health."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass
class ServerState:
    """The state of one server. Changed on the event loop only.

    `start` records the stages of its start. `steps` and `starts` make traces; None if traces are off.
    """

    names: tuple[str, ...]
    api_keys: ApiKeys = field(default_factory=ApiKeys)
    tenants: Tenants = field(default_factory=Tenants)
    gateways: Gateways = field(default_factory=Gateways)
    phase: Phase = Phase.LOADING
    stage: str = "start"
    fraction: float = 0.0
    transfer: Transfer | None = None
    reason: str = ""
    models: ModelTable | None = None
    in_flight: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    deployment: ModelName | None = None
    start: StartRecord = field(default_factory=StartRecord)
    steps: StepReporter | None = None
    starts: StartReporter | None = None
    _endings: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def key(self) -> ModelName:
        """The labels of series about the whole server: those of its only model; empty if it has several."""
        return metrics_key(self.deployment, self.names)

    def views(self) -> Sequence[ModelView]:
        """Return the present state of all models; nothing before the server is ready."""
        return () if self.models is None else self.models.views()

    def loading(self, stage: str, fraction: float, transfer: Transfer | None = None) -> None:
        """Set the stage of the start and its progress from 0 to 1; for a download, also its bytes."""
        self.stage, self.fraction, self.transfer = stage, fraction, transfer
        self.start(stage, fraction, transfer)

    def ready(self, models: ModelTable) -> None:
        """Set the models and become ready, unless the server is already ending."""
        if self.phase is Phase.LOADING:
            self.phase, self.models = Phase.READY, models

    def fail(self, error: BaseException) -> None:
        """Enter the failed phase because of this error."""
        self.phase = Phase.FAILED
        self.reason = error.kind.value if isinstance(error, PlimsollError) else "internal"

    def admit(self) -> None:
        """Count a new request. Raises ApiError (503) unless ready."""
        if self.phase is not Phase.READY:
            raise self.refusal()
        self.in_flight += 1
        self.idle.clear()

    def release(self) -> None:
        """Count the end of an admitted request."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self.idle.set()

    def at_end(self, work: Callable[[], Awaitable[None]]) -> None:
        """Register work for the end of the process, before the models are gone."""
        self._endings.append(work)

    async def end(self) -> None:
        """Run the registered work in order, after the drain. Requests that did not end in time may still be in
        flight."""
        for work in self._endings:
            await work()

    def refusal(self) -> ApiError:
        """Return the error (503) for requests in the present phase."""
        if self.phase is Phase.LOADING:
            return unavailable(f"The model is loading ({self.stage}, {self.fraction:.0%}); try again in some seconds.")
        if self.phase is Phase.DRAINING:
            return unavailable("The server is shutting down; try another one, or again in some seconds.")
        what = "device has failed" if self.reason == ErrorKind.DEVICE.value else "engine has died"
        return unavailable(f"The {what} and the server will restart; try again in some seconds.")

    def require_models(self) -> ModelTable:
        """Return the models that a request may name. Raises ApiError (503) if none is loaded yet."""
        if self.models is None:
            raise self.refusal()
        return self.models

    @property
    def _stats(self) -> list[EngineStats]:
        return [view.stats for view in self.views() if view.stats is not None]

    @property
    def recovering(self) -> bool:
        """Whether a model's engine replaces lost processes and cannot run steps."""
        return any(stats.recovering for stats in self._stats)

    @property
    def _recovery(self) -> dict[str, str]:
        """Why the last generation of a recovering model's ranks has ended, and what the next one waits for."""
        groups = [stats.group for stats in self._stats if stats.recovering]
        found = {"reason": group.reason, "stage": group.stage} if (group := next(iter(groups), None)) else {}
        return {name: words for name, words in found.items() if words}

    @property
    def _instruction_set(self) -> dict[str, str]:
        """The instruction set of a group whose members have different ones."""
        found = [stats.group.instruction_set for stats in self._stats if stats.group is not None]
        return {"instruction_set": found[0]} if any(found) else {}

    @property
    def report(self) -> dict[str, Any]:
        """The body of /health."""
        if self.phase is Phase.LOADING:
            said = {"status": self.phase.value, "stage": self.stage, "fraction": round(self.fraction, 3)}
            return said if self.transfer is None else {**said, "bytes": asdict(self.transfer)}
        if self.phase is Phase.FAILED:
            return {"status": self.phase.value, "reason": self.reason}
        if self.phase is Phase.READY and self.recovering:
            return {"status": "recovering", **self._recovery, **self._instruction_set}
        return {"status": self.phase.value, **self._instruction_set}
