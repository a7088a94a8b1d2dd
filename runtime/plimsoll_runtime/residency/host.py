"""The supervisor of a shared pod's models, for those in front of it: operations, leases, the report.

Everything happens on one event loop. See docs/residency.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from plimsoll_runtime.errors import PlimsollError, UsageError
from plimsoll_runtime.residency.counters import Counters
from plimsoll_runtime.residency.engines import Device, Engines
from plimsoll_runtime.residency.errors import DoesNotFit, NotPlaced, Refused, Superseded
from plimsoll_runtime.residency.journal import Journal
from plimsoll_runtime.residency.ledger import DeviceLedger, Memory, SleeperLedger
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.names import ModelName
from plimsoll_runtime.residency.operations import Operation, Operations
from plimsoll_runtime.residency.report import DeviceReport, ModelReport, Report, SleepersReport
from plimsoll_runtime.residency.resident import Resident
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.sizes import size_text
from plimsoll_runtime.residency.spec import ModelSpec, check_priority, check_spec, check_weight
from plimsoll_runtime.residency.states import ASLEEP, Level, State
from plimsoll_runtime.residency.supervisor import Supervisor
from plimsoll_runtime.residency.waiters import Bounds, Waiters

_REACHED = {
    Level.RESIDENT: frozenset({State.RESIDENT}),
    Level.IN_HOST: frozenset({State.IN_HOST, State.RESIDENT}),
    Level.ON_DISK: frozenset(State) - {State.ABSENT, State.FETCHING},
}
_SLEPT = {Level.IN_HOST: ASLEEP, Level.ON_DISK: frozenset({State.ON_DISK})}
NEVER: frozenset[State] = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    """An operation as it stands. `model` is None once it has been forgotten; `error` is why it ended in vain."""

    operation: str
    done: bool
    model: ModelReport | None
    error: PlimsollError | None = None


class Host:
    """One device's models. `wall` gives seconds since the epoch; `start` before anything else."""

    def __init__(self, engines: Engines, settings: Settings, *, wall: Callable[[], float] = time.time) -> None:
        self.instance = uuid.uuid4().hex
        self.counters = Counters()
        self._engines = engines
        self._settings = settings
        self._wall = wall
        self._operations = Operations()
        self._bounds = Bounds(settings.max_waiting, settings.max_waiting_bytes)
        self._supervisor: Supervisor | None = None
        self._closed = False

    async def start(self) -> None:
        """Measure the device and begin. Raises PlimsollError where that cannot be."""
        settings = self._settings
        self._device = await self._engines.open(settings.line, settings.sleepers)
        line = int(self._device.capacity * settings.line)
        memory = Memory(
            DeviceLedger(self._device.capacity, line), SleeperLedger(settings.sleepers), shared=self._device.shared
        )
        self._journal = Journal(self._wall)
        elastic = self._device.elastic
        self._supervisor = Supervisor(self._engines, settings, memory, self._journal, self.counters, elastic=elastic)
        self._supervisor.look()
        self._supervisor.start()

    async def close(self) -> None:
        """Refuse who waits, end every engine, close every image. May be called again."""
        if self._closed or self._supervisor is None:
            return
        self._closed = True
        await self._supervisor.close()
        await self._engines.close()

    @property
    def device(self) -> Device:
        """What the host runs on."""
        return self._device

    @property
    def sequence(self) -> int:
        """Of the latest change of a state, an error or a decision."""
        return self._journal.sequence

    def placed(self) -> Mapping[ModelName, ModelSpec]:
        """The models that may be leased, with their specs."""
        return {
            name: model.next_spec or model.spec for name, model in self._running.models.items() if not model.leaving
        }

    def report(self) -> Report:
        """Everything, as it is now."""
        supervisor, wall = self._running, self._wall()
        device, sleepers = supervisor.memory.device, supervisor.memory.sleepers
        return Report(
            instance=self.instance,
            sequence=self.sequence,
            time=wall,
            device=DeviceReport(
                kind=self._device.kind,
                name=self._device.name,
                capacity=device.capacity,
                line=device.line,
                reserved=device.reserved,
                used=device.used,
                free=max(0, device.free),
                pressure=supervisor.pressure.word,
            ),
            sleepers=SleepersReport(capacity=sleepers.capacity, used=sleepers.used),
            models=tuple(self._entry(model, wall) for _, model in sorted(supervisor.models.items())),
            decisions=self._journal.decisions,
        )

    async def changed(self, after: int, seconds: float) -> Report:
        """The report, once its sequence is beyond `after` or so many seconds have passed."""
        await self._journal.beyond(after, seconds)
        return self.report()

    def place(self, name: ModelName, spec: ModelSpec, level: Level, operation: str) -> Outcome:
        """Place a model, or give one another spec, and bring it up to a level at least.

        Raises UsageError, OperationConflict, or DoesNotFit where pinned models would exceed the line.
        """
        check_spec(spec)
        done, new = self._begin(name, operation, "place", level, spec)
        if done is not None:
            return done
        supervisor = self._running
        model = supervisor.models.get(name)
        if model is None:
            self._check_pinned(name, spec.pinned)
            model = Model(name, spec, Waiters(self._bounds), supervisor.now)
            supervisor.models[name] = model
        else:
            self._check_pinned(name, spec.pinned)
            if model.leaving or spec.needs_reload != model.spec.needs_reload:
                self._supersede(model, "another spec was placed", all_of_them=True)
                model.leaving, model.next_spec = False, spec
            else:
                self._supersede(model, "it was placed again")
                model.spec, model.next_spec = spec, None
            self._set_pin(model, pinned=spec.pinned, weight=spec.weight, priority=spec.priority)
        if level is not Level.ON_DISK:
            self._want(model, level)
        return self._go(model, new, _REACHED[level])

    def remove(self, name: ModelName, operation: str) -> Outcome:
        """Drain, unload and forget it. Requests that wait for it are refused. Raises NotPlaced and as `place`."""
        done, new = self._begin(name, operation, "remove")
        if done is not None:
            return done
        model = self._model(name)
        self._supersede(model, "the model was removed", all_of_them=True)
        model.waiters.refuse(NotPlaced(f"{name} was removed"))
        model.leaving, model.next_spec, model.wish = True, None, None
        self._anew()
        return self._go(model, new, NEVER)

    def wake(self, name: ModelName, operation: str) -> Outcome:
        """Wake it, in its turn. Raises NotPlaced, UsageError, OperationConflict."""
        done, new = self._begin(name, operation, "wake")
        if done is not None:
            return done
        model = self._model(name)
        self._supersede(model, "it was woken")
        self._want(model, Level.RESIDENT)
        return self._go(model, new, _REACHED[Level.RESIDENT])

    def sleep(self, name: ModelName, level: Level, operation: str) -> Outcome:
        """Drain it and put it to sleep, at this level at most. Raises NotPlaced, UsageError, OperationConflict."""
        if level is Level.RESIDENT:
            raise UsageError("level must be InHost or OnDisk: a model that sleeps is not Resident")
        done, new = self._begin(name, operation, "sleep", level)
        if done is not None:
            return done
        model = self._model(name)
        if model.pinned:
            raise UsageError(f"{name} is pinned, so it would wake at once: unpin it first")
        self._supersede(model, "it was put to sleep", all_of_them=True)
        model.wish = None
        if model.state not in _SLEPT[level] and model.state not in (State.ABSENT, State.FETCHING):
            model.rest = level
        return self._go(model, new, _SLEPT[level] | {State.ABSENT})

    def pin(
        self,
        name: ModelName,
        operation: str,
        *,
        pinned: bool | None = None,
        weight: float | None = None,
        priority: int | None = None,
    ) -> Outcome:
        """Change what is given; None leaves it. Raises NotPlaced, UsageError, OperationConflict, DoesNotFit."""
        if weight is not None:
            check_weight(weight)
        if priority is not None:
            check_priority(priority)
        done, new = self._begin(name, operation, "pin", pinned, weight, priority)
        if done is not None:
            return done
        model = self._model(name)
        self._check_pinned(name, bool(pinned))
        self._set_pin(
            model,
            pinned=model.pinned if pinned is None else pinned,
            weight=model.weight if weight is None else weight,
            priority=model.priority if priority is None else priority,
        )
        return self._go(model, new, frozenset(State))

    async def settled(self, operation: str, seconds: float) -> Outcome:
        """The outcome of an operation that is known, once it has ended or so many seconds have passed.

        Raises UsageError for one that is not known (any more).
        """
        found = self._operations.get(operation)
        if found is None:
            raise UsageError(f"there is no operation {operation!r}, or it has been forgotten")
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await found.wait()
        except TimeoutError:
            return self._outcome(found)
        return self._outcome(found)

    @asynccontextmanager
    async def lease(self, name: ModelName, *, size: int = 0, wait: float | None = None) -> AsyncIterator[Resident]:
        """The resident model, woken if it sleeps, kept awake while it is held.

        `size` bytes of the request are kept meanwhile, `wait` seconds are the longest it waits (the host's own bound
        where that is less). Raises NotPlaced, DoesNotFit or Refused; cancelled, it counts for nothing.
        """
        resident = await self._admit(name, size, wait)
        try:
            yield resident
        finally:
            self._running.leave(resident)

    def check_integrity(self) -> None:
        """Raises AssertionError or LedgerError where records contradict each other."""
        self._running.check_integrity()
        queues = [model.waiters for model in self._running.models.values()]
        assert self._bounds.count == sum(map(len, queues))

    @property
    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise RuntimeError("the host was not started")
        return self._supervisor

    async def _admit(self, name: ModelName, size: int, wait: float | None) -> Resident:
        supervisor = self._running
        if supervisor.closing:
            raise Refused("host_closing", "the server is shutting down; try another one", 1.0)
        model = self._model(name)
        if model.state is State.RESIDENT and model.resident is not None and model.resident.engine.failure is None:
            return supervisor.enter(model)
        self._check_hope(model)
        longest = self._settings.wait_seconds if wait is None else min(wait, self._settings.wait_seconds)
        try:
            waiter = model.waiters.add(supervisor.now, size, self._expected(model))
        except Refused as error:
            self.counters.refusals[error.code] += 1
            raise
        supervisor.kick()
        try:
            async with asyncio.timeout(longest):
                return await waiter.future
        except BaseException as error:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                supervisor.leave(waiter.future.result())
            model.waiters.give_up(waiter)
            supervisor.kick()
            if isinstance(error, TimeoutError):
                self.counters.refusals["waited_too_long"] += 1
                raise Refused(
                    "waited_too_long",
                    f"{name} was not awake within {longest:g} s ({model.why}); try again",
                    self._expected(model),
                ) from error
            raise

    def _check_hope(self, model: Model) -> None:
        """Raises where waiting would be in vain: it cannot fit, or has failed again and again."""
        left = model.retry_at - self._running.now
        if left <= 0:
            return
        if model.unfit is not None:
            raise DoesNotFit(model.unfit)
        if model.failures > 1 and left > self._settings.first_back_off:
            self.counters.refusals["load_failed"] += 1
            raise Refused("load_failed", f"{model.name} cannot be loaded: {model.error}", left)

    def _expected(self, model: Model) -> float:
        """Seconds after which the model may be awake."""
        return model.seconds.wake if model.image is not None else model.seconds.from_disk

    def _model(self, name: ModelName) -> Model:
        model = self._running.models.get(name)
        if model is None or model.leaving:
            raise NotPlaced(f"{name} is not placed on this host")
        return model

    def _entry(self, model: Model, wall: float) -> ModelReport:
        return model.report(self._running.memory.device.grants.get(model.name), self._running.now, wall)

    def _begin(self, name: ModelName, text: str, *content: object) -> tuple[Outcome | None, Operation]:
        """The outcome of an operation that is known already, else a new one that nothing was done about yet."""
        data = msgspec.json.encode([name, *content])
        digest = hashlib.sha256(data).hexdigest()
        known = self._operations.find(text, digest)
        if known is not None:
            return self._outcome(known), known
        return None, Operation(text, digest, name)

    def _go(self, model: Model, operation: Operation, goals: frozenset[State]) -> Outcome:
        """Remember the operation, which ends when the model is in one of these states, and begin."""
        self._operations.add(operation)
        self._running.advance(model)
        if model.state in goals and model.rest is None and model.next_spec is None:
            operation.end()
        elif not operation.done and self._running.models.get(model.name) is model:
            model.operations.append((operation, goals))
        elif not operation.done:
            operation.end()
        return self._outcome(operation)

    def _outcome(self, operation: Operation) -> Outcome:
        model = self._running.models.get(operation.name)
        entry = None if model is None else self._entry(model, self._wall())
        return Outcome(operation.id, operation.done, entry, operation.error)

    def _supersede(self, model: Model, why: str, *, all_of_them: bool = False) -> None:
        """Operations that want the opposite end here."""
        for operation, goals in model.operations:
            if all_of_them or State.RESIDENT not in goals:
                operation.end(Superseded(f"{why} by a later operation"))
        model.operations = [(operation, goals) for operation, goals in model.operations if not operation.done]

    def _want(self, model: Model, level: Level) -> None:
        if model.state in _REACHED[level] and model.next_spec is None:
            return
        if model.rest is not None:
            model.rest = None
            model.yielding = model.state is State.DRAINING and not model.stopping
        if model.wish is not Level.RESIDENT:
            model.wants(level, self._running.now)

    def _set_pin(self, model: Model, *, pinned: bool, weight: float, priority: int) -> None:
        if pinned and not model.pinned:
            model.wished_at = self._running.now
        model.pinned, model.weight, model.priority = pinned, weight, priority
        self._anew()
        self._journal.note()

    def _anew(self) -> None:
        """What did not fit may do so now."""
        for model in self._running.models.values():
            if model.unfit is not None:
                model.unfit, model.retry_at = None, self._running.now
        self._running.kick()

    def _check_pinned(self, name: ModelName, pinned: bool) -> None:
        """Raises DoesNotFit where the models that are pinned would take more than the line together."""
        if not pinned:
            return
        device = self._running.memory.device
        kept = [m for m in self._running.models.values() if (m.pinned and not m.leaving) or m.name == name]
        total = sum(model.found.sizes.least for model in kept if model.found is not None)
        if total + device.reserved > device.line:
            raise DoesNotFit(
                f"{', '.join(str(model.name) for model in kept)} would take {size_text(total)} pinned together, but of "
                f"the line of {size_text(device.line)} the runtime itself takes {size_text(device.reserved)}; pin fewer"
            )
