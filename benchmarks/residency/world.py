"""A simulated host: models load, serve and sleep as the planner decides, in seconds of a simulated clock.

The ledgers are the real ones, so grants beyond them fail here too.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from plimsoll_runtime.residency.ledger import DeviceLedger, Grant, Memory, SleeperLedger
from plimsoll_runtime.residency.model import Demand
from plimsoll_runtime.residency.planner.actions import (
    Action,
    DropImage,
    Plan,
    Refuse,
    Resize,
    Resume,
    Sleep,
    Wait,
    Wake,
)
from plimsoll_runtime.residency.planner.eviction import make_room
from plimsoll_runtime.residency.planner.view import HostView, ModelView, Pressure
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.sizes import Seconds, Sizes
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.states import Level, State, check_transition

STOP_SECONDS = 0.5
"""Seconds until an engine has ended."""
Planner = Callable[[HostView, Settings], Plan]
ImageRoom = Callable[[HostView, ModelView, int, int], tuple[DropImage, ...] | None]


class Clock:
    """Future events in order of time; simultaneous ones in order of insertion."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Schedule an event."""
        heapq.heappush(self._events, (when, next(self._order), what))

    def step(self, until: float = math.inf) -> bool:
        """Run the next event and all others of its time, unless it is later than `until`. Return whether one ran."""
        if not self._events or self._events[0][0] > until:
            return False
        self.now, _, what = heapq.heappop(self._events)
        what()
        while self._events and self._events[0][0] == self.now:
            heapq.heappop(self._events)[2]()
        return True


@dataclass(eq=False)
class Request:
    """One use of a model: arrival, duration, and start (None while waiting). Calls `answered` at its end."""

    arrived: float
    seconds: float
    began: float | None = None
    given_up: bool = False
    answered: Callable[[], None] = lambda: None


@dataclass
class Model:
    """A model in the simulation. `wished`: time since which an operation wants it awake. `rest`: sleep level that an
    operation requests. `leaving`: it is being removed.
    """

    name: ModelName
    sizes: Sizes
    seconds: Seconds
    weight: float = 1.0
    priority: int = 0
    pinned: bool = False
    state: State = State.ON_DISK
    since: float = 0.0
    grant: Grant | None = None
    has_image: bool = False
    demand: Demand = field(default_factory=Demand)
    clock: float = 0.0
    active: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    yielding: bool = False
    stopping: bool = False
    wished: float | None = None
    rest: Level | None = None
    leaving: bool = False

    @property
    def changing(self) -> bool:
        """Whether an operation puts it to sleep or removes it, so that nothing may wake it."""
        return self.leaving or self.rest is not None

    @property
    def asked(self) -> float | None:
        """Time since which requests or an operation want it awake, or None."""
        since = [request.arrived for request in self.waiting] + ([] if self.wished is None else [self.wished])
        return None if self.changing else min(since, default=None)

    def become(self, state: State, now: float) -> None:
        """Change to another state, if the transition is valid."""
        check_transition(self.state, state)
        self.state, self.since = state, now


class World:
    """One host. `run` advances it; counters are read afterwards."""

    def __init__(
        self,
        models: list[Model],
        memory: Memory,
        settings: Settings,
        decide: Planner,
        image_room: ImageRoom = make_room,
        clock: Clock | None = None,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.memory = memory
        self.settings = settings
        self.time = clock or Clock()
        self.clock = 0.0
        self.loading_seconds = 0.0
        self.wakes = self.loads = 0
        self.waits: list[float] = []
        self.refused = 0
        self.pressure = Pressure.NONE
        self.on_action: Callable[[HostView, Action], None] = lambda view, action: None
        self.seen: HostView = self.view()
        self._decide = decide
        self._image_room = image_room

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.time.now

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Schedule an event."""
        self.time.at(when, what)

    def arrive(self, name: ModelName, seconds: float) -> Request:
        """Add a request now."""
        request = Request(self.now, seconds)
        self.take(name, request)
        return request

    def take(self, name: ModelName, request: Request) -> None:
        """Add a request that arrived here now, or earlier at another host."""
        model = self.models[name]
        model.waiting.append(request)
        self._serve(model)

    def place(self, model: Model, level: Level) -> None:
        """Operation: add a model as files, and wake it unless the level is OnDisk."""
        assert model.name not in self.models
        self.models[model.name] = model
        if level is not Level.ON_DISK:
            self.wish(model.name)

    def wish(self, name: ModelName) -> None:
        """Operation: wake a model."""
        model = self.models[name]
        if model.state is not State.RESIDENT and model.wished is None:
            model.wished = self.now

    def put_to_sleep(self, name: ModelName, level: Level) -> None:
        """Operation: put a model to sleep at this level, once its active requests have ended. A model that sleeps at
        this or a lower level stays there.
        """
        model = self.models[name]
        model.wished = None
        if model.state is State.IN_HOST and level is Level.ON_DISK:
            self._drop(model)
        elif model.state in (State.RESIDENT, State.WAKING, State.DRAINING):
            model.rest = level
            self._leave_device(model)

    def remove(self, name: ModelName) -> list[Request]:
        """Operation: remove a model once its active requests have ended. Return its waiting requests."""
        model = self.models[name]
        model.leaving, model.wished = True, None
        left = list(model.waiting)
        model.waiting.clear()
        self._leave_device(model)
        self._forget(model)
        return left

    def give_up(self, name: ModelName, request: Request) -> None:
        """Remove a request whose client has disconnected."""
        model = self.models[name]
        if request in model.waiting:
            request.given_up = True
            model.waiting.remove(request)

    def run(self, until: float = math.inf) -> None:
        """Run all events until a time."""
        self.replan()
        while self.time.step(until):
            self.replan()
        if until < math.inf:
            self.time.now = until

    def view(self, *, relieve: bool = False) -> HostView:
        """Return the host as the planner sees it."""
        device = self.memory.device
        models = tuple(self._view_of(model) for model in self.models.values() if not model.stopping or model.grant)
        return HostView(
            self.now, models, device.line, device.reserved, device.free, self.memory.shared, self.clock,
            self.pressure, relieve,
        )  # fmt: skip

    def replan(self, *, relieve: bool = False) -> None:
        """Call the planner, and apply its plan."""
        self.seen = self.view(relieve=relieve)
        plan = self._decide(self.seen, self.settings)
        for action in plan.actions:
            self.on_action(self.seen, action)
            self._do(action)
        if self.now < plan.look_at < math.inf:
            self.at(plan.look_at, lambda: None)
        self.memory.check_integrity()

    def _view_of(self, model: Model) -> ModelView:
        waiting = len(model.waiting)
        return ModelView(
            name=model.name,
            state=model.state,
            sizes=model.sizes,
            seconds=model.seconds,
            since=model.since,
            grant=model.grant,
            image=model.sizes.image if model.has_image else 0,
            frequency=model.demand.frequency(self.now) + waiting + (model.wished is not None),
            clock=model.clock,
            last_used=model.demand.last_used,
            weight=model.weight,
            priority=model.priority,
            pinned=model.pinned,
            active=model.active,
            waiting=waiting,
            asked=model.asked,
            kv_used=0 if model.grant is None or not model.active else model.sizes.kv_minimum,
            yielding=model.yielding and not model.stopping,
            due=model.demand.due(),
        )

    def _do(self, action: Action) -> None:
        model = self.models[action.name]
        if isinstance(action, Wake):
            self.memory.wake(model.name, action.grant, model.sizes.image)
            model.grant = action.grant
            seconds = model.seconds.wake if model.has_image else model.seconds.from_disk
            self.wakes += 1
            self.loads += not model.has_image
            self.loading_seconds += seconds
            model.become(State.WAKING, self.now)
            self.at(self.now + seconds, lambda: self._awake(model))
        elif isinstance(action, Sleep):
            self.clock = max(self.clock, action.value)
            model.become(State.DRAINING, self.now)
            model.yielding = True
            self._drained(model)
        elif isinstance(action, Resume):
            model.become(State.RESIDENT, self.now)
            model.yielding = False
            self._serve(model)
        elif isinstance(action, DropImage):
            self._drop(model)
        elif isinstance(action, Resize):
            assert model.grant is not None
            model.grant = model.grant.with_kv(action.kv)
            self.memory.device.change(model.name, model.grant)
            self.at(self.now, lambda: None)
        elif isinstance(action, Refuse):
            self.refused += len(model.waiting)
            model.waiting.clear()
        else:
            assert isinstance(action, Wait)

    def _awake(self, model: Model) -> None:
        model.has_image = True
        model.wished = None
        model.become(State.RESIDENT, self.now)
        if model.changing:
            self._leave_device(model)
        self._serve(model)

    def _leave_device(self, model: Model) -> None:
        """Continue towards sleep for an operation; a waking model wakes first."""
        if model.state is State.RESIDENT:
            model.become(State.DRAINING, self.now)
        model.yielding = False
        self._drained(model)

    def _drop(self, model: Model) -> None:
        self.memory.sleepers.take(model.name)
        model.has_image = False
        model.become(State.ON_DISK, self.now)

    def _forget(self, model: Model) -> None:
        if model.leaving and model.state in (State.IN_HOST, State.ON_DISK):
            if model.has_image:
                self._drop(model)
            del self.models[model.name]

    def _serve(self, model: Model) -> None:
        """Start waiting requests, if the model is awake."""
        if model.state is not State.RESIDENT:
            return
        while model.waiting:
            request = model.waiting.popleft()
            request.began = self.now
            self.waits.append(self.now - request.arrived)
            model.active += 1
            model.demand = model.demand.used(self.now)
            model.clock = self.clock
            self.at(self.now + request.seconds, partial(self._answered, model, request))

    def _answered(self, model: Model, request: Request) -> None:
        model.active -= 1
        self._drained(model)
        request.answered()

    def _drained(self, model: Model) -> None:
        if model.state is State.DRAINING and model.active == 0 and not model.stopping:
            model.stopping = True
            self.at(self.now + STOP_SECONDS, lambda: self._asleep(model))

    def _asleep(self, model: Model) -> None:
        """Handle the end of an engine: its memory is free, and its image stays if that is worth it."""
        model.yielding = model.stopping = False
        comer = self._view_of(model)
        size = model.sizes.image
        model.grant = None
        self.memory.release(model.name)
        self.replan()
        to_disk = model.leaving or model.rest is Level.ON_DISK
        drops = self._image_room(self.view(), comer, size, self.memory.sleepers.free) if self.memory.shared else ()
        for drop in () if to_disk else drops or ():
            self._do(drop)
        model.has_image = self.memory.keep(model.name, 0 if to_disk else size)
        model.become(State.IN_HOST if model.has_image else State.ON_DISK, self.now)
        model.rest = None
        self._forget(model)


def memory_of(line: int, sleepers: int, *, shared: bool = True) -> Memory:
    """Return the memory of a device with a line, and space for sleepers."""
    return Memory(DeviceLedger(line, line), SleeperLedger(sleepers), shared=shared)
