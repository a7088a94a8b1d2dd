"""A simulated pool: hosts that decide which models are awake, with the operator's planner above them.

Both planners are the production code: `plimsoll_runtime.residency.planner.plan` in every host, over the host's own
ledgers, and `plimsoll_operator.placement.planner` over the hosts' reports. A request goes to a host where its model is
awake, or else to one that has it, and waits there, like with the gateway. The operator plans shortly after a host's
state has changed, and every ten seconds: waiting requests alone do not count as a change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.planner import plan as plan_pool
from plimsoll_operator.placement.records.action import Action, Move, Place, Sleep, Unload, Wake
from plimsoll_operator.placement.records.host import Copy, Sleepers
from plimsoll_operator.placement.records.host import Host as HostReport
from plimsoll_operator.placement.records.level import State
from plimsoll_operator.placement.records.model import Model, Need
from plimsoll_operator.placement.records.plan import Plan
from plimsoll_operator.placement.records.pool import Demand, PoolState, Rules
from plimsoll_runtime.residency.planner.plan import plan as plan_host
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.sizes import Seconds, Sizes
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.states import Level
from plimsoll_runtime.residency.states import State as Runtime
from residency import world
from residency.world import Clock, Request, World, memory_of

POOL = "pool"
EPOCH = 1_000_000.0
NEWS_SECONDS, LOOK_SECONDS = 0.5, 10.0
"""Delay of the operator's plan after a change of state, and its interval without changes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A simulated model: bytes, and seconds from files and from its image until it answers."""

    key: ObjectKey
    sizes: Sizes
    load: float
    wake: float

    @property
    def seconds(self) -> Seconds:
        """Return the seconds as hosts measure them: a load from files is divided into making the image and waking."""
        return Seconds(max(0.0, self.load - self.wake), self.wake)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: arrival, model, waiting time, and duration of its response."""

    at: float
    model: ObjectKey
    waited: float
    seconds: float


class Hosted:
    """The simulation. `told` is called with every action of the operator's plans, and its time."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        hosts: int,
        line: int,
        sleepers: int,
        settings: Settings | None = None,
        planner: Callable[[PoolState], Plan] = plan_pool,
        told: Callable[[float, Action], None] = lambda at, action: None,
    ) -> None:
        self.clock = Clock()
        self.kinds = {kind.key: kind for kind in kinds}
        settings = settings or Settings()
        self.worlds = {
            f"host-{number}": World([], memory_of(line, sleepers), settings, plan_host, clock=self.clock)
            for number in range(hosts)
        }
        self.asked: list[Asked] = []
        self.moves = 0
        self._rules = Rules(minimum_residency=settings.minimum_residency)
        self._planner, self._told = planner, told
        self._moved: dict[ObjectKey, float] = {}
        self._since: dict[ObjectKey, float] = {}
        self._measured: dict[tuple[str, ObjectKey], tuple[float, float]] = {}
        self._homeless: list[tuple[ObjectKey, Request]] = []
        self._states: object = None
        self._due = False

    @property
    def seconds(self) -> float:
        """Seconds of loading and waking, on all hosts."""
        return sum(host.loading_seconds for host in self.worlds.values())

    @property
    def loads(self) -> int:
        """Number of loads from files."""
        return sum(host.loads for host in self.worlds.values())

    @property
    def wakes(self) -> int:
        """Number of wakes from images."""
        return sum(host.wakes - host.loads for host in self.worlds.values())

    def ask(self, model: ObjectKey, seconds: float, answered: Callable[[], None] = lambda: None) -> None:
        """Add a request now, whose response takes `seconds`; call `answered` at its end."""
        request = Request(self.clock.now, seconds)

        def ended() -> None:
            assert request.began is not None
            self.asked.append(Asked(request.arrived, model, request.began - request.arrived, seconds))
            answered()

        request.answered = ended
        self._route(model, request)

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Run until all requests are answered. `goes_on` returns whether more may arrive."""
        self._plan()
        self._look(goes_on)
        while self.clock.step():
            self._settle()

    def _look(self, goes_on: Callable[[], bool]) -> None:
        self._plan()
        if goes_on() or self._homeless or any(m.waiting for host in self.worlds.values() for m in host.models.values()):
            self.clock.at(self.clock.now + LOOK_SECONDS, partial(self._look, goes_on))

    def _settle(self) -> None:
        """Let hosts plan, and schedule the operator's plan if a state has changed."""
        for host in self.worlds.values():
            host.replan()
        states = [(name, m.name, m.state) for name, host in self.worlds.items() for m in host.models.values()]
        if states != self._states and not self._due:
            self._due = True
            self.clock.at(self.clock.now + NEWS_SECONDS, self._plan)
        self._states = states

    def _plan(self) -> None:
        self._due = False
        for action in self._planner(self.state()).actions:
            self._told(self.clock.now, action)
            self._carry_out(action)
        homeless, self._homeless = self._homeless, []
        for model, request in homeless:
            self._route(model, request)

    def _route(self, model: ObjectKey, request: Request) -> None:
        """Send a request to the copy that is awake and has the fewest active requests, else to the one with the most
        waiting requests. If no host has the model, hold the request until the next plan.
        """
        name = ModelName(model.namespace, model.name)
        copies = [(host, host.models[name]) for host in self.worlds.values() if name in host.models]
        copies = [(host, copy) for host, copy in copies if not copy.leaving]
        if not copies:
            self._homeless.append((model, request))
            return
        host, _ = min(
            copies, key=lambda found: (found[1].state is not Runtime.RESIDENT, found[1].active, -len(found[1].waiting))
        )
        host.take(name, request)

    def _carry_out(self, action: Action) -> None:
        host, name = self.worlds[action.host.name], ModelName(action.model.namespace, action.model.name)
        match action:
            case Place(level=level):
                host.place(self._made(action.model), Level(level.value))
            case Unload():
                for request in host.remove(name):
                    self._route(action.model, request)
            case Sleep(level=level):
                host.put_to_sleep(name, Level(level.value))
            case Wake():
                host.wish(name)
            case Move(level=level):
                self.moves += 1
                self._moved[action.model] = EPOCH + self.clock.now
                host.place(self._made(action.model), Level(level.value))

    def _made(self, key: ObjectKey) -> world.Model:
        kind = self.kinds[key]
        return world.Model(ModelName(key.namespace, key.name), kind.sizes, kind.seconds)

    def state(self) -> PoolState:
        """Return the pool as the operator's planner sees it."""
        now = EPOCH + self.clock.now
        hosts = tuple(self._report(name, host) for name, host in self.worlds.items())
        waiting = {copy.model for host in hosts for copy in host.models if copy.waiting}
        self._since = {key: self._since.get(key, now) for key in waiting}
        demand = tuple(Demand(key, since=since) for key, since in sorted(self._since.items()))
        return PoolState(now, tuple(map(self._model, self.kinds.values())), hosts, demand, self._rules)

    def _model(self, kind: Kind) -> Model:
        sizes = kind.sizes
        need = Need(sizes.weights, sizes.workspace, sizes.kv_minimum, sizes.image)
        return Model(kind.key, "1", (need,), moved=self._moved.get(kind.key))

    def _report(self, name: str, host: World) -> HostReport:
        device, sleepers = host.memory.device, host.memory.sleepers
        copies = [self._copy(name, model, self.clock.now) for model in host.models.values()]
        used = sleepers.capacity - sleepers.free
        return HostReport(
            ObjectKey(POOL, name),
            name,
            device.line,
            device.line,
            sleepers=Sleepers(sleepers.capacity, used),
            time=EPOCH + self.clock.now,
            models=tuple(sorted(copies, key=lambda copy: copy.model)),
        )

    def _copy(self, host: str, model: world.Model, now: float) -> Copy:
        key, last = ObjectKey(model.name.namespace, model.name.name), model.demand.last_used
        if model.state is Runtime.RESIDENT:
            self._measured[host, key] = (model.seconds.from_disk, model.seconds.wake)
        load, wake = self._measured.get((host, key), (0.0, 0.0))
        grant = model.grant
        return Copy(
            key,
            "1",
            State(model.state.value),
            weights=0 if grant is None else grant.weights,
            workspace=0 if grant is None else grant.workspace,
            kv=0 if grant is None else grant.kv,
            host=model.sizes.image if model.has_image else 0,
            active=model.active,
            waiting=len(model.waiting),
            rate=model.demand.rate(now),
            last_used=EPOCH + last if last > 0 else 0.0,
            since=EPOCH + model.since,
            load_seconds=load,
            wake_seconds=wake,
            going=model.leaving,
        )
