"""From InHost or OnDisk to Resident: waits for granted memory and starts an engine."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import replace

from plimsoll_runtime.errors import EngineDeadError, MemoryLimitError, ModelError, PlimsollError
from plimsoll_runtime.residency.engines.base import Found, Resident, Started
from plimsoll_runtime.residency.ledger import Grant, LedgerError
from plimsoll_runtime.residency.lifecycle.failures import Failures
from plimsoll_runtime.residency.lifecycle.sleep import SleepDriver, end_engine
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.planner.actions import Wake
from plimsoll_runtime.residency.sizes import size_text
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.state import HostState, Replanner
from plimsoll_runtime.residency.states import Level, State

logger = logging.getLogger(__name__)

FREE_AGAIN_SECONDS = 0.2
"""Interval of checks whether released memory is free."""


class WakeDriver:
    """Wakes models. Memory is granted when a wake starts and released when its process has ended."""

    def __init__(self, state: HostState, sleeping: SleepDriver, failures: Failures, steering: Replanner) -> None:
        self._state = state
        self._sleeping = sleeping
        self._failures = failures
        self._steering = steering
        self._serials = itertools.count(1)

    def begin(self, model: Model, action: Wake) -> None:
        """Start to wake a sleeping model, as the plan says."""
        assert model.found is not None
        state = self._state
        room = state.memory.wake(model.name, action.grant, model.found.sizes.image)
        model.become(State.WAKING, action.why, state.now)
        state.changed(model)
        model.task = state.tasks.spawn(self._wake(model, model.found, action.grant, room=room))

    async def _wake(self, model: Model, found: Found, grant: Grant, *, room: bool) -> None:
        state = self._state
        began, why = state.now, model.why
        from_disk = model.image is None or not model.image.complete
        try:
            async with asyncio.timeout(state.settings.load_seconds):
                started = await self._start(model, found, grant, room=room)
                await self._correct(model, started)
        except asyncio.CancelledError:
            self._sleeping.asleep(model, "its wake was cancelled")
            state.loop.call_soon(self._steering.advance, model)
            raise
        except TimeoutError:
            longest = state.settings.load_seconds
            self._failed(model, EngineDeadError(f"it was not ready within {longest:g} s and was stopped"))
        except PlimsollError as error:
            self._failed(model, error)
        except Exception as error:
            logger.exception("cannot wake %s", model.name)
            self._failed(model, EngineDeadError(f"{type(error).__name__}: {error}"))
        else:
            self._woken(model, started, state.now - began, why, from_disk=from_disk)

    async def _start(self, model: Model, found: Found, grant: Grant, *, room: bool) -> Started:
        state = self._state
        if model.image is None and room:
            model.image = state.engines.image(model.name, found.sizes.image)
        there = model.image.nbytes if model.image is not None and state.memory.shared else 0
        await self._until_free(model.name, grant.total - there)
        return await state.engines.start(model.name, model.spec, found, model.image, grant)

    async def _until_free(self, name: ModelName, size: int) -> None:
        """Wait until `size` bytes are free. Raises MemoryLimitError after `free_seconds`."""
        state = self._state
        give_up = state.now + state.settings.free_seconds
        while (free := state.engines.look().free) < size:
            if state.now >= give_up:
                raise MemoryLimitError(
                    f"{name} was granted {size_text(size)}, but only {size_text(free)} are free; something outside of "
                    "the host uses the rest"
                )
            await asyncio.sleep(FREE_AGAIN_SECONDS)

    async def _correct(self, model: Model, started: Started) -> None:
        """Store measured sizes, also in the ledgers. If they do not fit, end the engine and raise MemoryLimitError."""
        assert model.found is not None
        memory, sizes, grant = self._state.memory, model.found.sizes, started.grant
        measured = replace(sizes, image=started.image or sizes.image, weights=grant.weights, workspace=grant.workspace)
        model.found = replace(model.found, sizes=measured)
        try:
            memory.device.change(model.name, grant)
            if not memory.shared and started.image and model.name in memory.sleepers.entries:
                memory.sleepers.change(model.name, started.image)
        except LedgerError as error:
            await end_engine(started.engine)
            raise MemoryLimitError(f"it needs more memory than predicted: {error}") from error

    def _woken(self, model: Model, started: Started, seconds: float, why: str, *, from_disk: bool) -> None:
        assert model.found is not None
        state = self._state
        resident = Resident(model.name, model.spec, model.found.files, started.engine, next(self._serials))
        model.resident, model.task, model.error, model.unfit = resident, None, None, None
        model.kv_floor = 0
        self._count(model, seconds, from_disk=from_disk)
        model.become(State.RESIDENT, why, state.now)
        state.journal.decide(model.name, "Loaded" if from_disk else "Woken", f"{why}; it took {seconds:.1f} s")
        if model.wish is Level.IN_HOST and not model.waiters:
            model.rest = Level.IN_HOST
        state.let_in(model)
        state.tasks.spawn(self._sleeping.watch(model, resident))
        self._steering.advance(model)

    def _count(self, model: Model, seconds: float, *, from_disk: bool) -> None:
        counters = self._state.counters
        model.loading_seconds += seconds
        if from_disk:
            model.loads += 1
            counters.loads += 1
            counters.load_seconds.add(seconds)
            model.seconds = model.seconds.loaded(seconds)
            model.measured_load = True
        else:
            model.wakes += 1
            counters.wakes += 1
            counters.wake_seconds.add(seconds)
            model.seconds = model.seconds.woken(seconds, loaded=model.measured_load)
            model.measured_wake = True

    def _failed(self, model: Model, error: PlimsollError) -> None:
        broken = isinstance(error, ModelError) and model.image is not None and model.image.complete
        if broken:
            # An image that does not fit the machine or the options must be loaded again.
            model.rest = Level.ON_DISK
        self._sleeping.asleep(model, "it could not be woken")
        self._failures.fail(model, error)
