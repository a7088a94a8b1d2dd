"""From Resident to InHost or OnDisk: drains requests, ends the engine, and releases its memory."""

from __future__ import annotations

import asyncio

from plimsoll_runtime.errors import DeviceLostError
from plimsoll_runtime.residency.engines.base import Engine, Resident
from plimsoll_runtime.residency.lifecycle.failures import Failures
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.planner.actions import DropImage, Sleep
from plimsoll_runtime.residency.planner.eviction import make_room
from plimsoll_runtime.residency.state import HostState, Replanner
from plimsoll_runtime.residency.states import Level, State


async def end_engine(engine: Engine) -> None:
    """End an engine. Wait for its end even if this task is cancelled, because its memory is not free before."""
    stopping = asyncio.ensure_future(engine.stop())
    cancelled = False
    while not stopping.done():
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            cancelled = True
    stopping.result()
    if cancelled:
        raise asyncio.CancelledError


class SleepDriver:
    """Puts models to sleep, and drops images."""

    def __init__(self, state: HostState, failures: Failures, steering: Replanner) -> None:
        self._state = state
        self._failures = failures
        self._steering = steering

    def evict(self, model: Model, action: Sleep) -> None:
        """Evict a model, as the plan says."""
        state = self._state
        state.clock = max(state.clock, action.value)
        state.counters.evictions += 1
        state.journal.decide(model.name, "Evicted", action.why)
        if action.level is Level.ON_DISK:
            model.rest = Level.ON_DISK
        self.drain(model, action.why, yielding=action.level is not Level.ON_DISK, told=True)

    def drain(self, model: Model, why: str, *, yielding: bool = False, told: bool = False) -> None:
        """Hold new requests, and end the engine when those in flight have ended. `told`: the decision is in the journal
        already.
        """
        assert model.resident is not None
        state = self._state
        lived = state.now - model.since
        model.yielding = yielding
        model.become(State.DRAINING, why, state.now)
        state.changed(model)
        model.task = state.tasks.spawn(self._put_to_sleep(model, model.resident, why, lived, told=told))

    def drop(self, model: Model, action: DropImage) -> None:
        """Drop a model's image, as the plan says."""
        self._state.clock = max(self._state.clock, action.value)
        self._state.counters.drops += 1
        self.give_up_image(model, action.why)

    def give_up_image(self, model: Model, why: str) -> None:
        """Drop an image, from InHost to OnDisk."""
        assert model.image is not None
        state = self._state
        model.image.close()
        model.image = None
        state.memory.sleepers.take(model.name)
        model.become(State.ON_DISK, why, state.now)
        state.journal.decide(model.name, "Unloaded", why)
        state.changed(model)

    def asleep(self, model: Model, why: str) -> None:
        """Release the memory of a model whose process has ended, and keep its image if that is worth its memory.

        Models that wait for the memory wake first: if one of them wakes from an image, that image leaves the sleepers'
        memory.
        """
        state, memory = self._state, self._state.memory
        comer = model.view(memory.device.entries[model.name], state.now, elastic=state.elastic)
        memory.release(model.name)
        model.resident, model.task, model.kv_wanted = None, None, None
        image = model.image
        to_disk = model.rest is Level.ON_DISK or model.leaving or model.next_spec is not None
        size = 0 if image is None or to_disk or not image.complete else image.nbytes
        self._steering.replan()
        if memory.shared and size:
            for drop in make_room(state.view(), comer, size, memory.sleepers.free) or ():
                self.drop(state.models[drop.name], drop)
        if not memory.keep(model.name, size) and image is not None:
            image.close()
            model.image = None
        model.become(State.IN_HOST if model.image is not None else State.ON_DISK, why, state.now)
        state.changed(model)
        self._steering.kick()

    async def watch(self, model: Model, resident: Resident) -> None:
        """Put a model to sleep when its engine dies. Requests on it get the engine's error.

        If the engine died because the device failed, the host loses the device.
        """
        await resident.engine.wait_dead()
        if isinstance(resident.engine.failure, DeviceLostError):
            self._failures.lose_device(resident.engine.failure)
        if model.resident is resident and model.state is State.RESIDENT:
            self.drain(model, f"its engine died: {resident.engine.failure}")

    async def _put_to_sleep(self, model: Model, resident: Resident, why: str, lived: float, *, told: bool) -> None:
        state = self._state
        await resident.drained()
        model.yielding, model.stopping = False, True
        if model.resizing is not None:
            model.resizing.cancel()
        death = resident.engine.failure
        await end_engine(resident.engine)
        model.stopping = False
        state.counters.sleeps += 1
        self.asleep(model, why)
        if death is not None:
            state.counters.deaths += 1
            if resident.has_served or lived > state.settings.longest_back_off:
                model.failures = 0  # loading had not failed
            self._failures.back_off(model, death)
        elif not told and not model.leaving:
            state.journal.decide(model.name, "Asleep", why)
        self._steering.advance(model)
