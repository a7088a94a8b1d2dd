"""Executes the plan: moves models between sleep levels, resizes KV caches, and keeps the ledgers up to date."""

from __future__ import annotations

import asyncio
import logging
import math

from plimsoll_runtime.errors import DeviceLostError, PlimsollError
from plimsoll_runtime.residency.engines.base import Resident
from plimsoll_runtime.residency.errors import HostError, Refused
from plimsoll_runtime.residency.lifecycle.failures import Failures
from plimsoll_runtime.residency.lifecycle.fetch import FetchDriver
from plimsoll_runtime.residency.lifecycle.sleep import SleepDriver
from plimsoll_runtime.residency.lifecycle.wake import WakeDriver
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.planner.actions import Action, DropImage, Refuse, Resize, Resume, Sleep, Wait, Wake
from plimsoll_runtime.residency.planner.plan import plan
from plimsoll_runtime.residency.spec import ModelSpec
from plimsoll_runtime.residency.state import HostState, Replanner
from plimsoll_runtime.residency.states import Level, State

logger = logging.getLogger(__name__)


class ResizeDriver:
    """Resizes KV caches.

    The ledger grows before a cache does, and shrinks after it.
    """

    def __init__(self, state: HostState, steering: Replanner) -> None:
        self._state = state
        self._steering = steering

    def begin(self, model: Model, kv: int) -> None:
        """Resize the KV cache of a resident model to `kv` bytes. If it grows, the difference must be free."""
        assert model.resident is not None
        device = self._state.memory.device
        grant = device.entries[model.name]
        if kv > grant.kv:
            device.change(model.name, grant.with_kv(kv))
        model.kv_wanted = kv
        model.resizing = self._state.tasks.spawn(self._resize(model, model.resident, kv))

    def settle(self, model: Model) -> None:
        """Return to the ledger the memory that a cache has released since its last resize, and allow plans to shrink it
        again.
        """
        model.kv_floor = 0
        if model.resident is not None and model.kv_wanted is None and not model.stopping:
            self._settle(model, model.resident)

    async def _resize(self, model: Model, resident: Resident, kv: int) -> None:
        try:
            await resident.engine.resize(kv)
            self._state.counters.resizes += 1
        except PlimsollError as error:
            logger.warning("%s's KV cache was not resized: %s", model.name, error)
        finally:
            if model.resident is resident:
                model.kv_wanted, model.resizing = None, None
        if model.resident is resident and not model.stopping:
            self._settle(model, resident)
            if resident.engine.kv_bytes > kv:
                model.kv_floor = resident.engine.kv_bytes
            self._steering.kick()

    def _settle(self, model: Model, resident: Resident) -> None:
        """Reduce the grant to the size of a KV cache that has shrunk; never increase it."""
        device = self._state.memory.device
        grant = device.entries[model.name]
        if resident.engine.kv_bytes < grant.kv:
            device.change(model.name, grant.with_kv(resident.engine.kv_bytes))


class Supervisor:
    """Makes plans, and executes plans and operations. It is the `Replanner` of the drivers.

    Everything runs on one event loop: a ledger changes between two awaits, never across one. A model has at most one
    task that changes its state.
    """

    def __init__(self, state: HostState) -> None:
        self._state = state
        self._failures = Failures(state, self)
        self._fetching = FetchDriver(state, self._failures, self)
        self._sleeping = SleepDriver(state, self._failures, self)
        self._waking = WakeDriver(state, self._sleeping, self._failures, self)
        self._resizing = ResizeDriver(state, self)
        self._kicked: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure the memory, and start to do so regularly."""
        self._look()
        self._state.tasks.spawn(self._keep_looking())

    async def close(self) -> None:
        """End everything: tasks first, then engines."""
        state = self._state
        state.closing = True
        for handle in (self._kicked, self._timer):
            if handle is not None:
                handle.cancel()
        for model in state.models.values():
            model.waiters.refuse(Refused("host_closing", "the server is shutting down; try another one", 1.0))
        await state.tasks.cancel()
        residents = [model.resident for model in state.models.values() if model.resident is not None]
        await asyncio.gather(*(resident.engine.stop(state.loss) for resident in residents))
        for model in state.models.values():
            self._let_go(model)
        state.models.clear()

    def kick(self) -> None:
        if self._kicked is None and not self._state.closing:
            self._kicked = self._state.loop.call_soon(self.replan)

    def replan(self, *, relieve: bool = False) -> None:
        """Plan and execute the plan immediately. `relieve`: the memory has just been measured."""
        if self._kicked is not None:
            self._kicked.cancel()
            self._kicked = None
        state = self._state
        if state.closing:
            return
        found = plan(state.view(relieve=relieve), state.settings)
        for action in found.actions:
            self._apply(state.models[action.name], action)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if found.look_at == math.inf else state.loop.call_at(found.look_at, self.kick)

    def advance(self, model: Model) -> None:
        state = self._state
        if state.closing or state.models.get(model.name) is not model:
            return
        unloading = model.leaving or model.next_spec is not None
        level = Level.ON_DISK if unloading else model.rest
        if level is not None:
            self._towards_sleep(model, level, unloading=unloading)
        if not model.leaving and model.state is State.ABSENT and model.task is None and model.retry_at <= state.now:
            self._fetching.begin(model)
        self.kick()

    def enter(self, model: Model) -> Resident:
        """Count a new request of a resident model."""
        return self._state.enter(model)

    def leave(self, resident: Resident) -> None:
        """Record the end of a request."""
        resident.leave()
        if resident.active == 0:
            self.kick()

    def _apply(self, model: Model, action: Action) -> None:
        match action:
            case Wake():
                self._waking.begin(model, action)
            case Sleep():
                self._sleeping.evict(model, action)
            case Resume():
                self._resume(model, action)
            case DropImage():
                self._sleeping.drop(model, action)
            case Resize():
                self._resizing.begin(model, action.kv)
            case Refuse():
                self._failures.refuse(model, action)
            case Wait():
                model.why = action.why

    def _resume(self, model: Model, action: Resume) -> None:
        assert model.task is not None
        assert model.resident is not None
        if model.resident.engine.failure is not None:
            return  # it has just died: its drain ends it, and a resumed model would not be watched
        model.task.cancel()
        model.task, model.yielding = None, False
        model.become(State.RESIDENT, action.why, self._state.now)
        self._state.let_in(model)

    def _towards_sleep(self, model: Model, level: Level, *, unloading: bool) -> None:
        if model.state in (State.FETCHING, State.WAKING) and unloading and model.task is not None:
            self._call_off(model, model.task)
        elif model.state is State.RESIDENT:
            why = "it is being removed" if model.leaving else "its spec has changed" if unloading else "put to sleep"
            self._sleeping.drain(model, why)
        elif model.state is State.DRAINING:
            model.yielding = False
        elif model.state is State.IN_HOST and level is Level.ON_DISK:
            self._sleeping.give_up_image(model, "its image was dropped")
        if model.state in (State.ON_DISK, State.ABSENT) or (model.state is State.IN_HOST and level is Level.IN_HOST):
            model.rest = None
            if model.leaving:
                self._forget(model)
            elif model.next_spec is not None:
                self._take_next_spec(model, model.next_spec)

    def _call_off(self, model: Model, task: asyncio.Task[None]) -> None:
        """Cancel a task once, and only after it has started: a task that never ran cleans nothing up."""
        if model.called_off is not task:
            model.called_off = task
            self._state.loop.call_soon(task.cancel)

    def _forget(self, model: Model) -> None:
        del self._state.models[model.name]
        for operation, _ in model.operations:
            operation.end()
        self._state.journal.decide(model.name, "Unloaded", "removed")

    def _take_next_spec(self, model: Model, spec: ModelSpec) -> None:
        """Replace the spec, when nothing of the old one is in memory."""
        model.spec, model.next_spec, model.found = spec, None, None
        model.error, model.unfit, model.failures, model.retry_at = None, None, 0, -math.inf
        model.measured_load = model.measured_wake = False
        if model.state is State.ON_DISK:
            model.become(State.ABSENT, "its spec has changed", self._state.now)

    def _let_go(self, model: Model) -> None:
        """Release everything of a model when the host closes."""
        memory = self._state.memory
        if model.name in memory.device.entries:
            memory.release(model.name)
        if model.name in memory.sleepers.entries:
            memory.sleepers.take(model.name)
        if model.image is not None:
            model.image.close()
        for operation, _ in model.operations:
            operation.end(HostError("the server is shutting down"))

    async def _keep_looking(self) -> None:
        """Measure the memory regularly. A failed measurement is logged and repeated."""
        failing = False
        while self._state.loss is None:
            await asyncio.sleep(self._state.settings.check_seconds)
            try:
                self._look()
                self.replan(relieve=True)
            except DeviceLostError as error:
                self._failures.lose_device(error)
            except Exception as error:
                if not failing:
                    logger.exception("cannot measure the memory; trying again every few seconds")
                failing = True
                logger.debug("cannot measure the memory: %s", error)
            else:
                failing = False

    def _look(self) -> None:
        """Measure the memory, and update the ledger and the pressure."""
        state, seen = self._state, self._state.engines.look()
        state.memory.device.reserve(seen.reserved)
        if seen.pressure is not state.pressure:
            state.pressure = seen.pressure
            state.journal.note()
        for model in state.models.values():
            self._resizing.settle(model)
