"""The interface to the models of a host: operations, model references, the report.

Everything runs on one event loop. See docs/concepts/residency.md.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from plimsoll_runtime.errors import DeviceLostError, UsageError
from plimsoll_runtime.residency.engines.base import Device, Engines, Resident
from plimsoll_runtime.residency.errors import NotPlaced
from plimsoll_runtime.residency.ledger import DeviceLedger, Memory, SleeperLedger
from plimsoll_runtime.residency.lifecycle.commands import Goals, Pins
from plimsoll_runtime.residency.lifecycle.operations import Operation, OperationStatus
from plimsoll_runtime.residency.lifecycle.supervisor import Supervisor
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.model_references import Admission
from plimsoll_runtime.residency.report import Counters, DeviceReport, Journal, Report, SleepersReport
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelName, ModelSpec, check_priority, check_spec, check_weight
from plimsoll_runtime.residency.state import HostState
from plimsoll_runtime.residency.states import ASLEEP, Level, State
from plimsoll_runtime.residency.wake_queue import Bounds, Waiters
from plimsoll_runtime.weights.files import ModelFiles

REACHED = {
    Level.RESIDENT: frozenset({State.RESIDENT}),
    Level.IN_HOST: frozenset({State.IN_HOST, State.RESIDENT}),
    Level.ON_DISK: frozenset(State) - {State.ABSENT, State.FETCHING},
}
SLEPT = {Level.IN_HOST: ASLEEP, Level.ON_DISK: frozenset({State.ON_DISK})}
NEVER: frozenset[State] = frozenset()


class Host:
    """The models of one device. Call `start` first. `wall` returns seconds since the epoch.

    Repeating an operation returns the same status and has no second effect.
    """

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
        """Measure the device and start. Raises PlimsollError if the device cannot be used."""
        settings = self._settings
        self._device = device = await self._engines.open(settings.line, settings.sleepers)
        ledger = DeviceLedger(device.capacity, int(device.capacity * settings.line))
        memory = Memory(ledger, SleeperLedger(settings.sleepers), shared=device.shared)
        journal = Journal(self._wall)
        state = HostState(self._engines, settings, memory, journal, self.counters, elastic=device.elastic)
        self._supervisor = Supervisor(state)
        self._goals = Goals(state, self._supervisor)
        self._pins = Pins(state, self._supervisor)
        self._admission = Admission(state, self._supervisor)
        self._started = state
        self._supervisor.start()

    async def close(self) -> None:
        """Refuse waiting requests, end every engine, close every image. May be called again."""
        if self._closed or self._started is None:
            return
        self._closed = True
        await self._supervisor.close()
        await self._engines.close()

    @property
    def device(self) -> Device:
        """The host's device."""
        return self._device

    @property
    def loss(self) -> DeviceLostError | None:
        """The error that the device was lost with; None while it works."""
        return self._state.loss

    async def lost(self) -> None:
        """Return when the device is lost. No model can be served afterwards, and the process should end."""
        await self._state.lost.wait()

    @property
    def sequence(self) -> int:
        """Number of the last change of a state, an error or a decision."""
        return self._state.journal.sequence

    def placed(self) -> Mapping[ModelName, ModelSpec]:
        """Return the placed models that are not being removed, each with the spec that was placed last."""
        return {name: model.newest_spec for name, model in self._state.models.items() if not model.leaving}

    def spec_of(self, name: ModelName) -> ModelSpec | None:
        """Return the spec that was placed last for a model, or None if it is not placed or is being removed. It is the
        same object until another is placed.
        """
        model = self._state.models.get(name)
        return None if model is None or model.leaving else model.newest_spec

    def files_of(self, name: ModelName) -> ModelFiles | None:
        """Return the files of a placed model; None if they are not fetched yet, or if it is not placed or is being
        removed.
        """
        model = self._state.models.get(name)
        return None if model is None or model.leaving or model.found is None else model.found.files

    def report(self) -> Report:
        """Return the complete current report."""
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
        """Return the report when its sequence exceeds `after`, or after `seconds`."""
        await self._state.journal.beyond(after, seconds)
        return self.report()

    def place(self, name: ModelName, spec: ModelSpec, level: Level, operation: str) -> OperationStatus:
        """Place a model, or change a placed one's spec, and bring it to at least `level`.

        Raises UsageError, OperationConflict, or DoesNotFit if pinned models would exceed the line.
        """
        check_spec(spec)
        done, new = self._begin(name, operation, "place", level, spec)
        if done is not None:
            return done
        state = self._state
        model = state.models.get(name)
        self._pins.check(name, pinned=spec.pinned)
        if model is None:
            model = state.models[name] = Model(name, spec, Waiters(self._bounds), state.now)
        else:
            self._place_again(model, spec)
        if level is not Level.ON_DISK:
            self._want(model, level)
        return self._goals.go(model, new, REACHED[level])

    def remove(self, name: ModelName, operation: str) -> OperationStatus:
        """Drain, unload and remove a model. Its waiting requests are refused. Raises NotPlaced, UsageError,
        OperationConflict.
        """
        done, new = self._begin(name, operation, "remove")
        if done is not None:
            return done
        model = self._state.model(name)
        self._goals.supersede(model, "the model was removed", all_of_them=True)
        model.waiters.refuse(NotPlaced(f"{name} was removed"))
        model.leaving, model.next_spec, model.wish = True, None, None
        self._pins.anew()
        return self._goals.go(model, new, NEVER)

    def wake(self, name: ModelName, operation: str) -> OperationStatus:
        """Request a wake of a model. Plans treat it like a request for the model that arrives now.

        Raises NotPlaced, UsageError, OperationConflict.
        """
        done, new = self._begin(name, operation, "wake")
        if done is not None:
            return done
        model = self._state.model(name)
        self._goals.supersede(model, "it was woken")
        self._want(model, Level.RESIDENT)
        return self._goals.go(model, new, REACHED[Level.RESIDENT])

    def sleep(self, name: ModelName, level: Level, operation: str) -> OperationStatus:
        """Drain a model and put it to sleep at `level`, or leave it at a lower one.

        Raises NotPlaced, UsageError, OperationConflict.
        """
        if level is Level.RESIDENT:
            raise UsageError("level must be InHost or OnDisk to put a model to sleep")
        done, new = self._begin(name, operation, "sleep", level)
        if done is not None:
            return done
        model = self._state.model(name)
        if model.pinned:
            raise UsageError(f"{name} is pinned and would wake immediately; unpin it first")
        self._goals.supersede(model, "it was put to sleep", all_of_them=True)
        model.wish = None
        if model.state not in SLEPT[level] and model.state not in (State.ABSENT, State.FETCHING):
            model.rest = level
        return self._goals.go(model, new, SLEPT[level] | {State.ABSENT})

    def pin(
        self,
        name: ModelName,
        operation: str,
        *,
        pinned: bool | None = None,
        weight: float | None = None,
        priority: int | None = None,
    ) -> OperationStatus:
        """Set pin, weight and priority of a model; None keeps the present value.

        Raises NotPlaced, UsageError, OperationConflict, DoesNotFit.
        """
        if weight is not None:
            check_weight(weight)
        if priority is not None:
            check_priority(priority)
        done, new = self._begin(name, operation, "pin", pinned, weight, priority)
        if done is not None:
            return done
        model = self._state.model(name)
        self._pins.check(name, pinned=bool(pinned))
        self._pins.set(
            model,
            pinned=model.pinned if pinned is None else pinned,
            weight=model.weight if weight is None else weight,
            priority=model.priority if priority is None else priority,
        )
        return self._goals.go(model, new, frozenset(State))

    async def settled(self, operation: str, seconds: float) -> OperationStatus:
        """Return the status of a known operation when it has ended, or after `seconds`.

        Raises UsageError for an unknown or forgotten operation.
        """
        assert self._state is not None
        return await self._goals.settled(operation, seconds)

    @asynccontextmanager
    async def lease(self, name: ModelName, *, size: int = 0, wait: float | None = None) -> AsyncIterator[Resident]:
        """Wake the model if it sleeps, and keep it awake inside the context.

        `size`: bytes of the request, counted while it waits. `wait`: most seconds to wait, if less than the host's own
        limit. Raises NotPlaced, DoesNotFit or Refused; if cancelled, nothing is counted.
        """
        assert self._state is not None
        resident = await self._admission.admit(name, size, wait)
        try:
            yield resident
        finally:
            self._supervisor.leave(resident)

    def check_integrity(self) -> None:
        """Raise AssertionError or LedgerError if records contradict each other."""
        self._state.check_integrity()
        queues = [model.waiters for model in self._state.models.values()]
        assert self._bounds.count == sum(map(len, queues))

    def _place_again(self, model: Model, spec: ModelSpec) -> None:
        if model.leaving or spec.needs_reload != model.spec.needs_reload:
            self._goals.supersede(model, "another spec was placed", all_of_them=True)
            model.leaving, model.next_spec = False, spec
        else:
            self._goals.supersede(model, "it was placed again")
            model.spec, model.next_spec = spec, None
        self._pins.set(model, pinned=spec.pinned, weight=spec.weight, priority=spec.priority)

    def _want(self, model: Model, level: Level) -> None:
        if model.state in REACHED[level] and model.next_spec is None:
            return
        if model.rest is not None:
            model.rest = None
            model.yielding = model.state is State.DRAINING and not model.stopping
        if model.wish is not Level.RESIDENT:
            model.wants(level, self._state.now)

    def _begin(self, name: ModelName, operation: str, *content: object) -> tuple[OperationStatus | None, Operation]:
        assert self._state is not None
        return self._goals.begin(name, operation, *content)

    @property
    def _state(self) -> HostState:
        if self._started is None:
            raise RuntimeError("the host was not started; call start() first")
        return self._started
