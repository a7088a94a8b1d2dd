"""A host that is simulated: models load, serve and sleep as the planner says, in seconds of a clock of its own.

The ledgers are the real ones; what the planner grants beyond them fails here as it would there.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from plimsoll_runtime.residency.actions import (
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
from plimsoll_runtime.residency.demand import Demand
from plimsoll_runtime.residency.ledger import DeviceLedger, Grant, Memory, SleeperLedger
from plimsoll_runtime.residency.names import ModelName
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.sizes import Seconds, Sizes
from plimsoll_runtime.residency.sleepers import make_room
from plimsoll_runtime.residency.states import State, check_transition
from plimsoll_runtime.residency.view import HostView, ModelView, Pressure

STOP_SECONDS = 0.5
"""How long an engine takes to end."""
Planner = Callable[[HostView, Settings], Plan]
ImageRoom = Callable[[HostView, ModelView, int, int], tuple[DropImage, ...] | None]


@dataclass(eq=False)
class Request:
    """One use of a model: when it came, how long its answer takes, when it began (None: it waits)."""

    arrived: float
    seconds: float
    began: float | None = None
    given_up: bool = False


@dataclass
class Model:
    """A model in the simulation."""

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

    def become(self, state: State, now: float) -> None:
        """Go on to another state, if that may follow."""
        check_transition(self.state, state)
        self.state, self.since = state, now


class World:
    """One host. `run` drives it; counters are read afterwards."""

    def __init__(
        self,
        models: list[Model],
        memory: Memory,
        settings: Settings,
        decide: Planner,
        image_room: ImageRoom = make_room,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.memory = memory
        self.settings = settings
        self.now = 0.0
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
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._events, (when, next(self._order), what))

    def arrive(self, name: ModelName, seconds: float) -> Request:
        """A request, now."""
        request = Request(self.now, seconds)
        model = self.models[name]
        model.waiting.append(request)
        self._serve(model)
        return request

    def give_up(self, name: ModelName, request: Request) -> None:
        """Its client has gone."""
        model = self.models[name]
        if request in model.waiting:
            request.given_up = True
            model.waiting.remove(request)

    def run(self, until: float = math.inf) -> None:
        """Let everything happen that is due until then."""
        self.replan()
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
            while self._events and self._events[0][0] == self.now:
                heapq.heappop(self._events)[2]()
            self.replan()
        if until < math.inf:
            self.now = until

    def view(self, *, relieve: bool = False) -> HostView:
        """What the planner sees."""
        device = self.memory.device
        models = tuple(self._view_of(model) for model in self.models.values() if not model.stopping or model.grant)
        return HostView(
            self.now, models, device.line, device.reserved, device.free, self.memory.shared, self.clock,
            self.pressure, relieve,
        )  # fmt: skip

    def replan(self, *, relieve: bool = False) -> None:
        """Ask the planner, and do as it says."""
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
            frequency=model.demand.frequency(self.now) + waiting,
            clock=model.clock,
            last_used=model.demand.last_used,
            weight=model.weight,
            priority=model.priority,
            pinned=model.pinned,
            active=model.active,
            waiting=waiting,
            asked=min((r.arrived for r in model.waiting), default=None),
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
            self.memory.sleepers.take(model.name)
            model.has_image = False
            model.become(State.ON_DISK, self.now)
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
        model.become(State.RESIDENT, self.now)
        self._serve(model)

    def _serve(self, model: Model) -> None:
        """Begin what waits, if the model is awake."""
        if model.state is not State.RESIDENT:
            return
        while model.waiting:
            request = model.waiting.popleft()
            request.began = self.now
            self.waits.append(self.now - request.arrived)
            model.active += 1
            model.demand = model.demand.used(self.now)
            model.clock = self.clock
            self.at(self.now + request.seconds, lambda: self._answered(model))

    def _answered(self, model: Model) -> None:
        model.active -= 1
        self._drained(model)

    def _drained(self, model: Model) -> None:
        if model.state is State.DRAINING and model.active == 0 and not model.stopping:
            model.stopping = True
            self.at(self.now + STOP_SECONDS, lambda: self._asleep(model))

    def _asleep(self, model: Model) -> None:
        """Its engine has ended: its memory is free, and its image stays if that is worth it."""
        model.yielding = model.stopping = False
        comer = self._view_of(model)
        size = model.sizes.image
        model.grant = None
        self.memory.release(model.name)
        self.replan()
        drops = self._image_room(self.view(), comer, size, self.memory.sleepers.free) if self.memory.shared else ()
        for drop in drops or ():
            self._do(drop)
        model.has_image = self.memory.keep(model.name, size)
        model.become(State.IN_HOST if model.has_image else State.ON_DISK, self.now)


def memory_of(line: int, sleepers: int, *, shared: bool = True) -> Memory:
    """Of a device with a line, and room for sleepers."""
    return Memory(DeviceLedger(line, line), SleeperLedger(sleepers), shared=shared)
