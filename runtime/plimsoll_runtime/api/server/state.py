"""Where a server is in its life, and whether it may take a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from plimsoll_runtime.api.http.errors import ApiError, unavailable
from plimsoll_runtime.api.model_directory import ModelTable
from plimsoll_runtime.api.server.credentials import ApiKeys, Gateways, Tenants
from plimsoll_runtime.errors import ErrorKind, PlimsollError
from plimsoll_runtime.utils.progress import Transfer


class Phase(Enum):
    """The value is what /health says."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass
class ServerState:
    """One server's life. Changed on the event loop only."""

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
    _endings: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.idle.set()

    def loading(self, stage: str, fraction: float, transfer: Transfer | None = None) -> None:
        """A stage of the start, and how far it is from 0 to 1; of a download its bytes as well."""
        self.stage, self.fraction, self.transfer = stage, fraction, transfer

    def ready(self, models: ModelTable) -> None:
        """There are models to ask. Too late when the server is already on its way out."""
        if self.phase is Phase.LOADING:
            self.phase, self.models = Phase.READY, models

    def fail(self, error: BaseException) -> None:
        """Nothing can be served any more, because of this."""
        self.phase = Phase.FAILED
        self.reason = error.kind.value if isinstance(error, PlimsollError) else "internal"

    def admit(self) -> None:
        """A request begins. Raises ApiError (503) unless ready."""
        if self.phase is not Phase.READY:
            raise self.refusal()
        self.in_flight += 1
        self.idle.clear()

    def release(self) -> None:
        """An admitted request ended, one way or another."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self.idle.set()

    def at_end(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do this before the process ends, while the models are still there."""
        self._endings.append(work)

    async def end(self) -> None:
        """No request is taken or answered any more: do what is to be done at the end."""
        for work in self._endings:
            await work()

    def refusal(self) -> ApiError:
        """Why no request is taken now."""
        if self.phase is Phase.LOADING:
            return unavailable(f"The model is loading ({self.stage}, {self.fraction:.0%}); try again in some seconds.")
        if self.phase is Phase.DRAINING:
            return unavailable("The server is shutting down; try another one, or again in some seconds.")
        what = "device has failed" if self.reason == ErrorKind.DEVICE.value else "engine has died"
        return unavailable(f"The {what} and the server is about to restart; try again in some seconds.")

    def require_models(self) -> ModelTable:
        """The models that an admitted request may name."""
        if self.models is None:
            raise self.refusal()
        return self.models

    @property
    def report(self) -> dict[str, Any]:
        """What /health says."""
        if self.phase is Phase.LOADING:
            said = {"status": self.phase.value, "stage": self.stage, "fraction": round(self.fraction, 3)}
            return said if self.transfer is None else {**said, "bytes": asdict(self.transfer)}
        if self.phase is Phase.FAILED:
            return {"status": self.phase.value, "reason": self.reason}
        return {"status": self.phase.value}
