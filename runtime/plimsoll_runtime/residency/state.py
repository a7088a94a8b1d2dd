"""The shared state of a host's parts: models, ledgers, clock, tasks, the loss of the device, and the `Replanner`
protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from plimsoll_runtime.errors import DeviceLostError
from plimsoll_runtime.residency.engines.base import Engines, Resident
from plimsoll_runtime.residency.errors import NotPlaced
from plimsoll_runtime.residency.ledger import Memory
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.planner.view import HostView, Pressure
from plimsoll_runtime.residency.report import Counters, Journal, ModelReport
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.states import HOLDS_DEVICE, State

logger = logging.getLogger(__name__)


class Tasks:
    """The tasks of one host."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancel all tasks, including those that they start while they end; return when none is left."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the host failed", exc_info=error)


@dataclass(slots=True, eq=False)
class HostState:
    """The state of a host. `clock`: see `retention_value`. `elastic`: whether KV caches can resize.

    `closing`: nothing new is started, because the host ends or has lost its device. `loss`: the error that the device
    was lost with; `lost` is set then. All state changes between two awaits, never across one.
    """

    engines: Engines
    settings: Settings
    memory: Memory
    journal: Journal
    counters: Counters
    elastic: bool
    models: dict[ModelName, Model] = field(default_factory=dict)
    pressure: Pressure = Pressure.NONE
    clock: float = 0.0
    closing: bool = False
    loss: DeviceLostError | None = None
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: Tasks = field(default_factory=Tasks)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @property
    def now(self) -> float:
        """The event loop's time."""
        return self.loop.time()

    def view(self, *, relieve: bool = False) -> HostView:
        """Return the input of a plan."""
        device, grants, now = self.memory.device, self.memory.device.entries, self.now
        found = (model for model in self.models.values() if model.found is not None)
        return HostView(
            now=now,
            models=tuple(model.view(grants.get(model.name), now, elastic=self.elastic) for model in found),
            line=device.line,
            reserved=device.reserved,
            free=device.free,
            shared=self.memory.shared,
            clock=self.clock,
            pressure=self.pressure,
            relieve=relieve,
        )

    def model(self, name: ModelName) -> Model:
        """Return a placed model. Raises NotPlaced."""
        model = self.models.get(name)
        if model is None or model.leaving:
            raise NotPlaced(f"{name} is not placed on this host")
        return model

    def entry(self, model: Model) -> ModelReport:
        """Return the report of a model."""
        return model.report(self.memory.device.entries.get(model.name), self.now, self.journal.wall())

    def changed(self, model: Model) -> None:
        """Record a change of a model's state, and end operations that wanted this state.

        While a new spec waits to replace the current one, states belong to the old spec and end no operation.
        """
        self.journal.note()
        if model.next_spec is not None:
            return
        for operation, goals in model.operations:
            if model.state in goals:
                operation.end()
        model.operations = [(operation, goals) for operation, goals in model.operations if not operation.done]

    def enter(self, model: Model) -> Resident:
        """Count a new request of a resident model."""
        assert model.resident is not None
        model.resident.enter()
        self._used(model, 1)
        return model.resident

    def let_in(self, model: Model) -> None:
        """Start the requests that wait for a model, which is resident."""
        assert model.resident is not None
        model.wish = None
        waited = model.waiters.let_in(model.resident, self.now)
        for seconds in waited:
            self.counters.wait_seconds.add(seconds)
        self._used(model, len(waited))
        self.changed(model)

    def _used(self, model: Model, times: int) -> None:
        for _ in range(times):
            model.demand = model.demand.used(self.now)
        if times:
            model.clock = self.clock

    def check_integrity(self) -> None:
        """Raise AssertionError or LedgerError if records contradict each other."""
        self.memory.check_integrity()
        assert self.memory.device.entries.keys() | self.memory.sleepers.entries.keys() <= self.models.keys()
        for model in self.models.values():
            self._check(model)

    def _check(self, model: Model) -> None:
        name, images = model.name, self.memory.sleepers.entries
        awake = model.state in HOLDS_DEVICE
        assert (name in self.memory.device.entries) is awake, f"{name} is {model.state}"
        assert (model.resident is not None) is (model.state in (State.RESIDENT, State.DRAINING)), name
        assert (model.image is not None) or model.state is not State.IN_HOST, name
        assert model.image is None or awake or model.state is State.IN_HOST, name
        if self.memory.shared:
            assert (name in images) is (model.state is State.IN_HOST), name
        else:
            # A waking model's image is in the ledger a moment before it exists.
            assert model.image is None or name in images, name
            assert model.image is not None or name not in images or model.state is State.WAKING, name
        if model.state is State.RESIDENT and model.resident is not None and len(model.waiters):
            assert model.resident.engine.failure is not None, name


class Replanner(Protocol):
    """Triggers planning. Calls are level-triggered: repeating one does no harm."""

    def advance(self, model: Model) -> None:
        """Take the next step of a model towards the state that operations want, and plan soon."""

    def kick(self) -> None:
        """Plan in the next iteration of the event loop; several calls before it make one plan."""

    def replan(self) -> None:
        """Plan again immediately, and execute the plan."""
