"""Drives models between disk and device as the plan says, and keeps the ledgers true while they go.

All of it runs on one event loop: a ledger changes between two awaits, never across one. A model has at most one task
that changes its state. Memory is granted when such a task begins and given back when the process that had it is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import EngineDeadError, MemoryLimitError, ModelError, PlimsollError
from plimsoll_runtime.residency.actions import (
    Action,
    DropImage,
    Refuse,
    Resize,
    Resume,
    Sleep,
    Wait,
    Wake,
)
from plimsoll_runtime.residency.counters import Counters
from plimsoll_runtime.residency.engines import Engine, Engines, Found, Started
from plimsoll_runtime.residency.errors import DoesNotFit, HostError, Refused
from plimsoll_runtime.residency.journal import Journal
from plimsoll_runtime.residency.ledger import Grant, LedgerError, Memory
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.names import ModelName
from plimsoll_runtime.residency.plan import plan
from plimsoll_runtime.residency.resident import Resident
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.sizes import Seconds, Sizes, size_text
from plimsoll_runtime.residency.sleepers import make_room
from plimsoll_runtime.residency.spec import ModelSpec, least_kv
from plimsoll_runtime.residency.states import Level, State
from plimsoll_runtime.residency.view import HostView, Pressure

logger = logging.getLogger(__name__)

FREE_AGAIN_SECONDS = 0.2
"""Between two looks whether memory that was given back is free."""


class Supervisor:
    """The models of one host, and whatever is under way with them."""

    def __init__(
        self,
        engines: Engines,
        settings: Settings,
        memory: Memory,
        journal: Journal,
        counters: Counters,
        *,
        elastic: bool,
    ) -> None:
        self.models: dict[ModelName, Model] = {}
        self.memory = memory
        self.pressure = Pressure.NONE
        self.clock = 0.0
        self.closing = False
        self._engines = engines
        self._settings = settings
        self._journal = journal
        self._counters = counters
        self._elastic = elastic
        self._serials = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._kicked: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def now(self) -> float:
        """The loop's time."""
        return self._loop.time()

    def start(self) -> None:
        """Begin to look at the memory regularly."""
        self._spawn(self._keep_looking())

    async def close(self) -> None:
        """End everything: tasks first, then engines."""
        self.closing = True
        for handle in (self._kicked, self._timer):
            if handle is not None:
                handle.cancel()
        for model in self.models.values():
            model.waiters.refuse(Refused("host_closing", "the server is shutting down; try another one", 1.0))
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        residents = [model.resident for model in self.models.values() if model.resident is not None]
        await asyncio.gather(*(resident.engine.stop() for resident in residents))
        for model in self.models.values():
            if model.name in self.memory.device.grants:
                self.memory.release(model.name)
            if model.name in self.memory.sleepers.images:
                self.memory.sleepers.take(model.name)
            if model.image is not None:
                model.image.close()
            for operation, _ in model.operations:
                operation.end(HostError("the server is shutting down"))
        self.models.clear()

    def kick(self) -> None:
        """Plan anew soon: something has changed."""
        if self._kicked is None and not self.closing:
            self._kicked = self._loop.call_soon(self.replan)

    def replan(self, *, relieve: bool = False) -> None:
        """Plan, and do as the plan says."""
        if self._kicked is not None:
            self._kicked.cancel()
            self._kicked = None
        if self.closing:
            return
        found = plan(self.view(relieve=relieve), self._settings)
        for action in found.actions:
            self._apply(self.models[action.name], action)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if found.look_at == math.inf else self._loop.call_at(found.look_at, self.kick)

    def view(self, *, relieve: bool = False) -> HostView:
        """What a plan is made of."""
        device, grants = self.memory.device, self.memory.device.grants
        models = (
            m.view(grants.get(m.name), self.now, elastic=self._elastic)
            for m in self.models.values()
            if m.found is not None
        )
        return HostView(
            now=self.now,
            models=tuple(models),
            line=device.line,
            reserved=device.reserved,
            free=device.free,
            shared=self.memory.shared,
            clock=self.clock,
            pressure=self.pressure,
            relieve=relieve,
        )

    def advance(self, model: Model) -> None:
        """Bring a model on towards what operations want of it; level-triggered, so calling it again does no harm."""
        if self.closing or self.models.get(model.name) is not model:
            return
        unloading = model.leaving or model.next_spec is not None
        level = Level.ON_DISK if unloading else model.rest
        if level is not None:
            self._towards_sleep(model, level, unloading=unloading)
        if model.state is State.ABSENT and model.task is None and model.retry_at <= self.now:
            model.become(State.FETCHING, "being fetched", self.now)
            self._changed(model)
            self._work_on(model, self._fetch(model))
        self.kick()

    def enter(self, model: Model) -> Resident:
        """A request on a resident model begins."""
        assert model.resident is not None
        model.resident.enter()
        self._used(model, 1)
        return model.resident

    def leave(self, resident: Resident) -> None:
        """A request has ended."""
        resident.leave()
        if resident.active == 0:
            self.kick()

    def check_integrity(self) -> None:
        """Raises AssertionError or LedgerError where records contradict each other."""
        self.memory.check_integrity()
        grants, images = self.memory.device.grants, self.memory.sleepers.images
        assert grants.keys() | images.keys() <= self.models.keys()
        for name, model in self.models.items():
            awake = model.state in (State.WAKING, State.RESIDENT, State.DRAINING)
            assert (name in grants) is awake, f"{name} is {model.state} with {grants.get(name)}"
            assert (model.resident is not None) is (model.state in (State.RESIDENT, State.DRAINING)), name
            assert (model.image is not None) or model.state is not State.IN_HOST, name
            assert model.image is None or awake or model.state is State.IN_HOST, name
            if self.memory.shared:
                assert (name in images) is (model.state is State.IN_HOST), name
            else:
                # One that wakes has paid for its image a moment before there is one.
                assert model.image is None or name in images, name
                assert model.image is not None or name not in images or model.state is State.WAKING, name
            if model.state is State.RESIDENT and model.resident is not None and len(model.waiters):
                assert model.resident.engine.failure is not None, name

    def _towards_sleep(self, model: Model, level: Level, *, unloading: bool) -> None:
        if model.state in (State.FETCHING, State.WAKING) and unloading and model.task is not None:
            self._call_off(model, model.task)
        elif model.state is State.RESIDENT:
            why = "it is to be removed" if model.leaving else "its spec has changed" if unloading else "put to sleep"
            self._drain(model, why)
        elif model.state is State.DRAINING:
            model.yielding = False
        elif model.state is State.IN_HOST and level is Level.ON_DISK:
            self._drop(model, "its image is given up")
        if model.state in (State.ON_DISK, State.ABSENT) or (model.state is State.IN_HOST and level is Level.IN_HOST):
            model.rest = None
            if model.leaving:
                self._forget(model)
            elif model.next_spec is not None:
                self._take_next_spec(model, model.next_spec)

    def _call_off(self, model: Model, task: asyncio.Task[None]) -> None:
        """Cancel a task, once, and not before it has begun: one that never ran cleans nothing up."""
        if model.called_off is not task:
            model.called_off = task
            self._loop.call_soon(task.cancel)

    def _forget(self, model: Model) -> None:
        del self.models[model.name]
        for operation, _ in model.operations:
            operation.end()
        self._journal.decide(model.name, "Unloaded", "removed")

    def _take_next_spec(self, model: Model, spec: ModelSpec) -> None:
        """Nothing of the old one is in memory: begin anew with the new one."""
        model.spec, model.next_spec, model.found = spec, None, None
        model.error, model.unfit, model.failures, model.retry_at = None, None, 0, -math.inf
        model.measured_load = model.measured_wake = False
        if model.state is State.ON_DISK:
            model.become(State.ABSENT, "its spec has changed", self.now)

    def _apply(self, model: Model, action: Action) -> None:
        match action:
            case Wake():
                self._begin_wake(model, action)
            case Sleep():
                self.clock = max(self.clock, action.value)
                self._counters.evictions += 1
                self._journal.decide(model.name, "Evicted", action.why)
                if action.level is Level.ON_DISK:
                    model.rest = Level.ON_DISK
                self._drain(model, action.why, yielding=action.level is not Level.ON_DISK, told=True)
            case Resume():
                assert model.task is not None
                model.task.cancel()
                model.task, model.yielding = None, False
                model.become(State.RESIDENT, action.why, self.now)
                self._serve(model)
            case DropImage():
                self.clock = max(self.clock, action.value)
                self._counters.drops += 1
                self._drop(model, action.why)
            case Resize():
                self._begin_resize(model, action.kv)
            case Refuse():
                self._refuse(model, action)
            case Wait():
                model.why = action.why

    def _begin_wake(self, model: Model, action: Wake) -> None:
        assert model.found is not None
        room = self.memory.wake(model.name, action.grant, model.found.sizes.image)
        model.become(State.WAKING, action.why, self.now)
        self._changed(model)
        self._work_on(model, self._wake(model, model.found, action.grant, room=room))

    async def _wake(self, model: Model, found: Found, grant: Grant, *, room: bool) -> None:
        began, why = self.now, model.why
        from_disk = model.image is None or not model.image.complete
        try:
            async with asyncio.timeout(self._settings.load_seconds):
                if model.image is None and room:
                    model.image = self._engines.image(model.name, found.sizes.image)
                there = model.image.nbytes if model.image is not None and self.memory.shared else 0
                await self._until_free(model.name, grant.total - there)
                started = await self._engines.start(model.name, model.spec, found, model.image, grant)
                await self._correct(model, started)
        except asyncio.CancelledError:
            self._asleep(model, "its wake was called off")
            self._loop.call_soon(self.advance, model)
            raise
        except TimeoutError:
            longest = self._settings.load_seconds
            self._failed_to_wake(model, EngineDeadError(f"it did not answer within {longest:g} s and was ended"))
        except PlimsollError as error:
            self._failed_to_wake(model, error)
        except Exception as error:
            logger.exception("%s could not be woken", model.name)
            self._failed_to_wake(model, EngineDeadError(f"{type(error).__name__}: {error}"))
        else:
            self._woken(model, started, self.now - began, why, from_disk=from_disk)

    async def _until_free(self, name: ModelName, size: int) -> None:
        """Wait until so much memory is really free. Raises MemoryLimitError where it is not in time."""
        give_up = self.now + self._settings.free_seconds
        while (free := self._engines.look().free) < size:
            if self.now >= give_up:
                raise MemoryLimitError(
                    f"{name} was granted {size_text(size)}, but only {size_text(free)} are free: something that the "
                    "host does not know of takes the rest"
                )
            await asyncio.sleep(FREE_AGAIN_SECONDS)

    def _woken(self, model: Model, started: Started, seconds: float, why: str, *, from_disk: bool) -> None:
        assert model.found is not None
        resident = Resident(model.name, model.spec, model.found.files, started.engine, next(self._serials))
        model.resident, model.task, model.error, model.unfit = resident, None, None, None
        model.kv_floor = 0
        self._timed(model, seconds, from_disk=from_disk)
        model.become(State.RESIDENT, why, self.now)
        self._journal.decide(model.name, "Loaded" if from_disk else "Woken", f"{why}; it took {seconds:.1f} s")
        if model.wish is Level.IN_HOST and not model.waiters:
            model.rest = Level.IN_HOST
        self._serve(model)
        self._spawn(self._watch(model, resident))
        self.advance(model)

    async def _correct(self, model: Model, started: Started) -> None:
        """Sizes as they were measured, in the ledgers too. Where they do not fit it is ended: MemoryLimitError."""
        assert model.found is not None
        sizes, grant = model.found.sizes, started.grant
        measured = replace(sizes, image=started.image or sizes.image, weights=grant.weights, workspace=grant.workspace)
        model.found = replace(model.found, sizes=measured)
        try:
            self.memory.device.change(model.name, grant)
            if not self.memory.shared and started.image and model.name in self.memory.sleepers.images:
                self.memory.sleepers.change(model.name, started.image)
        except LedgerError as error:
            await _ended(started.engine)
            raise MemoryLimitError(f"it takes more than was predicted: {error}") from error

    def _timed(self, model: Model, seconds: float, *, from_disk: bool) -> None:
        model.loading_seconds += seconds
        if from_disk:
            model.loads += 1
            self._counters.loads += 1
            self._counters.load_seconds.add(seconds)
            model.seconds = replace(model.seconds, load=max(0.0, seconds - model.seconds.wake))
            model.measured_load = True
        else:
            model.wakes += 1
            self._counters.wakes += 1
            self._counters.wake_seconds.add(seconds)
            model.seconds = replace(model.seconds, wake=seconds)
            model.measured_wake = True

    def _failed_to_wake(self, model: Model, error: PlimsollError) -> None:
        broken = isinstance(error, ModelError) and model.image is not None and model.image.complete
        if broken:
            # An image that does not fit the machine or the options is loaded anew.
            model.rest = Level.ON_DISK
        self._asleep(model, "it could not be woken")
        self._fail(model, error)

    def _fail(self, model: Model, error: PlimsollError) -> None:
        """Note a failure, tell who waits, and try it no sooner than after a while."""
        self._back_off(model, error)
        wait = model.retry_at - self.now
        count = model.waiters.refuse(Refused("load_failed", f"{model.name} cannot be loaded: {error}", wait))
        self._counters.refusals["load_failed"] += count
        model.wish = None
        self._end_operations(model, error)
        self.advance(model)

    def _back_off(self, model: Model, error: PlimsollError) -> None:
        settings = self._settings
        seconds = min(settings.longest_back_off, settings.first_back_off * 2.0 ** min(model.failures, 30))
        model.failures += 1
        model.retry_at = self.now + seconds
        model.error = error
        self._counters.failures += 1
        self._journal.note()
        self._loop.call_at(model.retry_at, self.advance, model)

    def _drain(self, model: Model, why: str, *, yielding: bool = False, told: bool = False) -> None:
        """Hold new requests, and end its process once those in flight have ended. `told`: the decision was noted."""
        assert model.resident is not None
        lived = self.now - model.since
        model.yielding = yielding
        model.become(State.DRAINING, why, self.now)
        self._changed(model)
        self._work_on(model, self._put_to_sleep(model, model.resident, why, lived, told=told))

    async def _put_to_sleep(self, model: Model, resident: Resident, why: str, lived: float, *, told: bool) -> None:
        await resident.drained()
        model.yielding, model.stopping = False, True
        if model.resizing is not None:
            model.resizing.cancel()
        death = resident.engine.failure
        await _ended(resident.engine)
        model.stopping = False
        self._counters.sleeps += 1
        self._asleep(model, why)
        if death is not None:
            self._counters.deaths += 1
            if lived > self._settings.longest_back_off:
                model.failures = 0
            self._back_off(model, death)
        elif not told and not model.leaving:
            self._journal.decide(model.name, "Asleep", why)
        self.advance(model)

    def _asleep(self, model: Model, why: str) -> None:
        """Its process is gone: give its memory back, and keep its image if that is worth its room.

        Who waits for the memory wakes first: if he sleeps in an image himself, that leaves the sleepers its room.
        """
        comer = model.view(self.memory.device.grants[model.name], self.now, elastic=self._elastic)
        self.memory.release(model.name)
        model.resident, model.task, model.kv_wanted = None, None, None
        image = model.image
        to_disk = model.rest is Level.ON_DISK or model.leaving or model.next_spec is not None
        size = 0 if image is None or to_disk or not image.complete else image.nbytes
        self.replan()
        if self.memory.shared and size:
            for drop in make_room(self.view(), comer, size, self.memory.sleepers.free) or ():
                self._apply(self.models[drop.name], drop)
        if not self.memory.keep(model.name, size) and image is not None:
            image.close()
            model.image = None
        model.become(State.IN_HOST if model.image is not None else State.ON_DISK, why, self.now)
        self._changed(model)
        self.kick()

    def _drop(self, model: Model, why: str) -> None:
        assert model.image is not None
        model.image.close()
        model.image = None
        self.memory.sleepers.take(model.name)
        model.become(State.ON_DISK, why, self.now)
        self._journal.decide(model.name, "Unloaded", why)
        self._changed(model)

    async def _watch(self, model: Model, resident: Resident) -> None:
        """See its engine die, should it; who has requests on it hears of that from the engine."""
        await resident.engine.wait_dead()
        if model.resident is resident and model.state is State.RESIDENT:
            self._drain(model, f"its engine died: {resident.engine.failure}")

    def _begin_resize(self, model: Model, kv: int) -> None:
        assert model.resident is not None
        grant = self.memory.device.grants[model.name]
        if kv > grant.kv:
            self.memory.device.change(model.name, grant.with_kv(kv))
        model.kv_wanted = kv
        model.resizing = self._spawn(self._resize(model, model.resident, kv))

    async def _resize(self, model: Model, resident: Resident, kv: int) -> None:
        try:
            await resident.engine.resize(kv)
            self._counters.resizes += 1
        except PlimsollError as error:
            logger.warning("%s's KV cache stays as it is: %s", model.name, error)
        finally:
            if model.resident is resident:
                model.kv_wanted, model.resizing = None, None
        if model.resident is resident and not model.stopping:
            self._settle_kv(model, resident)
            if resident.engine.kv_bytes > kv:
                model.kv_floor = resident.engine.kv_bytes
            self.kick()

    def _settle_kv(self, model: Model, resident: Resident) -> None:
        """The ledger follows a KV cache that has shrunk; it never grows without a grant."""
        grant = self.memory.device.grants[model.name]
        if resident.engine.kv_bytes < grant.kv:
            self.memory.device.change(model.name, grant.with_kv(resident.engine.kv_bytes))

    def _refuse(self, model: Model, action: Refuse) -> None:
        settings = self._settings
        error: HostError
        if action.code == DoesNotFit.code:
            error = DoesNotFit(action.why)
            model.unfit, model.retry_at = action.why, self.now + settings.longest_back_off
        else:
            error = Refused(action.code, action.why, settings.first_back_off)
            model.retry_at = self.now + settings.first_back_off
        self._counters.refusals[action.code] += max(1, model.waiters.refuse(error))
        model.error, model.wish = error, None
        self._end_operations(model, error)
        self._journal.decide(model.name, "Refused", action.why)

    async def _fetch(self, model: Model) -> None:
        try:
            found = await self._engines.find(model.name, model.spec)
        except asyncio.CancelledError:
            model.task = None
            model.become(State.ABSENT, "its fetch was called off", self.now)
            self._loop.call_soon(self.advance, model)
            raise
        except PlimsollError as error:
            self._failed_to_fetch(model, error)
        except Exception as error:
            logger.exception("%s could not be fetched", model.name)
            self._failed_to_fetch(model, HostError(f"{type(error).__name__}: {error}"))
        else:
            model.task = None
            model.found = replace(found, sizes=_with_least_kv(found.sizes, least_kv(model.spec)))
            model.seconds = Seconds.guessed(found.sizes.weights)
            model.error, model.failures = None, 0
            model.become(State.ON_DISK, "its files are there", self.now)
            self._changed(model)
            self.advance(model)

    def _failed_to_fetch(self, model: Model, error: PlimsollError) -> None:
        model.task = None
        model.become(State.ABSENT, "it could not be fetched", self.now)
        self._fail(model, error)

    def _serve(self, model: Model) -> None:
        """Let in who waits for a model that is resident."""
        assert model.resident is not None
        model.wish = None
        waited = model.waiters.let_in(model.resident, self.now)
        for seconds in waited:
            self._counters.wait_seconds.add(seconds)
        self._used(model, len(waited))
        self._changed(model)

    def _used(self, model: Model, times: int) -> None:
        for _ in range(times):
            model.demand = model.demand.used(self.now)
        if times:
            model.clock = self.clock

    def _changed(self, model: Model) -> None:
        """A state is another: operations may have come to their end, and others want to know."""
        self._journal.note()
        for operation, goals in model.operations:
            if model.state in goals:
                operation.end()
        model.operations = [(operation, goals) for operation, goals in model.operations if not operation.done]

    def _end_operations(self, model: Model, error: PlimsollError) -> None:
        """Those that want it awake have failed."""
        for operation, goals in model.operations:
            if State.RESIDENT in goals:
                operation.end(error)
        model.operations = [(operation, goals) for operation, goals in model.operations if not operation.done]

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._settings.check_seconds)
            self.look()
            self.replan(relieve=True)

    def look(self) -> None:
        """Measure the memory."""
        seen = self._engines.look()
        self.memory.device.reserve(seen.reserved)
        if seen.pressure is not self.pressure:
            self.pressure = seen.pressure
            self._journal.note()
        for model in self.models.values():
            model.kv_floor = 0
            if model.resident is not None and model.kv_wanted is None and not model.stopping:
                self._settle_kv(model, model.resident)

    def _work_on(self, model: Model, work: Coroutine[Any, Any, None]) -> None:
        model.task = self._spawn(work)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the host failed", exc_info=error)


async def _ended(engine: Engine) -> None:
    """End an engine, and wait for that even if this task is cancelled meanwhile: its memory is not free before."""
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


def _with_least_kv(sizes: Sizes, least: int | None) -> Sizes:
    """What the spec asks for as the least KV cache counts where it is more than the model's own least."""
    kv = max(sizes.kv_minimum, least or 0)
    return replace(sizes, kv_minimum=kv, kv_useful=max(kv, sizes.kv_useful))
