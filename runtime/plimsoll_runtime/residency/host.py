"""A shared pod's models, for those in front of them: operations, leases, the report.

Everything happens on one event loop. See docs/residency.md.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from plimsoll_runtime.errors import DeviceLostError
from plimsoll_runtime.residency.engines.base import Device, Engines, Resident
from plimsoll_runtime.residency.ledger import DeviceLedger, Memory, SleeperLedger
from plimsoll_runtime.residency.lifecycle.commands import Changes
from plimsoll_runtime.residency.lifecycle.operations import OperationStatus
from plimsoll_runtime.residency.lifecycle.supervisor import Supervisor
from plimsoll_runtime.residency.model_references import Admission
from plimsoll_runtime.residency.report import Counters, DeviceReport, Journal, Report, SleepersReport
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_runtime.residency.state import HostState
from plimsoll_runtime.residency.states import Level
from plimsoll_runtime.residency.wake_queue import Bounds
from plimsoll_runtime.weights.files import ModelFiles


class Host:
    """One device's models. `wall` gives seconds since the epoch; `start` before anything else."""

    def __init__(self, engines: Engines, settings: Settings, *, wall: Callable[[], float] = time.time) -> None:
        self.instance = uuid.uuid4().hex
        self.counters = Counters()
        self._engines = engines
        self._settings = settings
        self._wall = wall
        self._bounds = Bounds(settings.max_waiting, settings.max_waiting_bytes)
        self._started: HostState | None = None
        self._closed = False

    async def start(self) -> None:
        """Measure the device and begin. Raises PlimsollError where that cannot be."""
        settings = self._settings
        self._device = device = await self._engines.open(settings.line, settings.sleepers)
        ledger = DeviceLedger(device.capacity, int(device.capacity * settings.line))
        memory = Memory(ledger, SleeperLedger(settings.sleepers), shared=device.shared)
        journal = Journal(self._wall)
        state = HostState(self._engines, settings, memory, journal, self.counters, elastic=device.elastic)
        self._supervisor = Supervisor(state)
        self._changes = Changes(state, self._bounds, self._supervisor)
        self._admission = Admission(state, self._supervisor)
        self._started = state
        self._supervisor.start()

    async def close(self) -> None:
        """Refuse who waits, end every engine, close every image. May be called again."""
        if self._closed or self._started is None:
            return
        self._closed = True
        await self._supervisor.close()
        await self._engines.close()

    @property
    def device(self) -> Device:
        """What the host runs on."""
        return self._device

    @property
    def loss(self) -> DeviceLostError | None:
        """Why the device is lost; None while it is not."""
        return self._state.loss.error

    async def lost(self) -> None:
        """Return once the device is lost: no model can be had any more, and the process is to end."""
        await self._state.loss.wait()

    @property
    def sequence(self) -> int:
        """Of the latest change of a state, an error or a decision."""
        return self._state.journal.sequence

    def placed(self) -> Mapping[ModelName, ModelSpec]:
        """The models that may be leased, with their specs."""
        return {name: model.newest_spec for name, model in self._state.models.items() if not model.leaving}

    def spec_of(self, name: ModelName) -> ModelSpec | None:
        """That of a model that may be leased; None for others. The same object as long as nobody places another."""
        model = self._state.models.get(name)
        return None if model is None or model.leaving else model.newest_spec

    def files_of(self, name: ModelName) -> ModelFiles | None:
        """Those that a model of this name was found to have; None before, and for one that may not be leased."""
        model = self._state.models.get(name)
        return None if model is None or model.leaving or model.found is None else model.found.files

    def report(self) -> Report:
        """Everything, as it is now."""
        state = self._state
        device, sleepers = state.memory.device, state.memory.sleepers
        return Report(
            instance=self.instance,
            sequence=self.sequence,
            time=self._wall(),
            device=DeviceReport(
                kind=self._device.kind,
                name=self._device.name,
                capacity=device.capacity,
                line=device.line,
                reserved=device.reserved,
                used=device.used,
                free=max(0, device.free),
                pressure=state.pressure.word,
                findings=(*self._device.findings, *([] if self.loss is None else [str(self.loss)])),
            ),
            sleepers=SleepersReport(capacity=sleepers.capacity, used=sleepers.used),
            models=tuple(state.entry(model) for _, model in sorted(state.models.items())),
            decisions=state.journal.decisions,
        )

    async def changed(self, after: int, seconds: float) -> Report:
        """The report, once its sequence is beyond `after` or so many seconds have passed."""
        await self._state.journal.beyond(after, seconds)
        return self.report()

    def place(self, name: ModelName, spec: ModelSpec, level: Level, operation: str) -> OperationStatus:
        """Place a model, or give one another spec, and bring it up to a level at least.

        Raises UsageError, OperationConflict, or DoesNotFit where pinned models would exceed the line.
        """
        return self._running.place(name, spec, level, operation)

    def remove(self, name: ModelName, operation: str) -> OperationStatus:
        """Drain, unload and forget it. Requests that wait for it are refused. Raises NotPlaced and as `place`."""
        return self._running.remove(name, operation)

    def wake(self, name: ModelName, operation: str) -> OperationStatus:
        """Wake it, in its turn. Raises NotPlaced, UsageError, OperationConflict."""
        return self._running.wake(name, operation)

    def sleep(self, name: ModelName, level: Level, operation: str) -> OperationStatus:
        """Drain it and put it to sleep, at this level at most. Raises NotPlaced, UsageError, OperationConflict."""
        return self._running.sleep(name, level, operation)

    def pin(
        self,
        name: ModelName,
        operation: str,
        *,
        pinned: bool | None = None,
        weight: float | None = None,
        priority: int | None = None,
    ) -> OperationStatus:
        """Change what is given; None leaves it. Raises NotPlaced, UsageError, OperationConflict, DoesNotFit."""
        return self._running.pin(name, operation, pinned=pinned, weight=weight, priority=priority)

    async def settled(self, operation: str, seconds: float) -> OperationStatus:
        """The outcome of an operation that is known, once it has ended or so many seconds have passed.

        Raises UsageError for one that is not known (any more).
        """
        return await self._running.settled(operation, seconds)

    @asynccontextmanager
    async def lease(self, name: ModelName, *, size: int = 0, wait: float | None = None) -> AsyncIterator[Resident]:
        """The resident model, woken if it sleeps, kept awake while it is held.

        `size` bytes of the request are kept meanwhile, `wait` seconds are the longest it waits (the host's own bound
        where that is less). Raises NotPlaced, DoesNotFit or Refused; cancelled, it counts for nothing.
        """
        assert self._state is not None
        resident = await self._admission.admit(name, size, wait)
        try:
            yield resident
        finally:
            self._supervisor.leave(resident)

    def check_integrity(self) -> None:
        """Raises AssertionError or LedgerError where records contradict each other."""
        self._state.check_integrity()
        queues = [model.waiters for model in self._state.models.values()]
        assert self._bounds.count == sum(map(len, queues))

    @property
    def _running(self) -> Changes:
        assert self._state is not None
        return self._changes

    @property
    def _state(self) -> HostState:
        if self._started is None:
            raise RuntimeError("the host was not started")
        return self._started
