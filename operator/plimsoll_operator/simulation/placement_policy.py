"""The planner as a simulated policy: builds hosts' reports, plans, and executes the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.planner import plan
from plimsoll_operator.placement.records.action import Move, Place, Sleep, Unload, Wake
from plimsoll_operator.placement.records.host import Copy as Report
from plimsoll_operator.placement.records.host import Host as HostReport
from plimsoll_operator.placement.records.host import Sleepers
from plimsoll_operator.placement.records.level import Level, State
from plimsoll_operator.placement.records.plan import Plan
from plimsoll_operator.placement.records.pool import Demand, PoolState, Rules
from plimsoll_operator.placement.retention_value import decayed
from plimsoll_operator.simulation.pool import Copy, Host, Pool

POOL = "pool"
EPOCH = 1_000_000.0
"""The start of the trace. 0 would mean an unknown time."""


class PlannerPolicy:
    """The operator's planner. Calls `told(seconds since the start of the trace, plan)` for each plan with actions."""

    name = "plimsoll"

    def __init__(self, rules: Rules | None = None, told: Callable[[float, Plan], None] | None = None) -> None:
        self._rules, self._told = rules or Rules(), told
        self._leaving: set[Copy] = set()

    def begin(self, pool: Pool) -> None:
        """Place the files of all models before the first request."""
        self.decide(pool)

    def decide(self, pool: Pool) -> float | None:
        """Plan and execute the plan. Return the seconds after which to plan again even without a change, or None."""
        for copy in [copy for copy in self._leaving if _replaced(pool, copy)]:
            pool.unload(copy)
            self._leaving.discard(copy)
        made = plan(self.state(pool))
        for action in made.actions:
            host = pool.hosts[action.host.name]
            match action:
                case Place():
                    _bring(pool, pool.place(pool.models[action.model], host), action.level)
                case Unload():
                    pool.unload(host.copies[action.model])
                case Sleep():
                    pool.sleep(host.copies[action.model], State(action.level))
                case Wake():
                    pool.wake(host.copies[action.model])
                case Move():
                    self._move(pool, action)
        if made.actions and self._told is not None:
            self._told(pool.now, made)
        return made.wait

    def state(self, pool: Pool) -> PoolState:
        """Return the planner's input that the operator would have at this time."""
        now = EPOCH + pool.now
        demand = tuple(_demand(key, rate, pool, now) for key, rate in self.rates(pool).items())
        hosts = tuple(self._host(host, pool) for host in pool.hosts.values())
        return PoolState(now, tuple(pool.models.values()), hosts, demand, self._rules)

    def rates(self, pool: Pool) -> Mapping[ObjectKey, float]:
        """Return requests a second by model, as gateways measure them."""
        return pool.rates()

    def _host(self, host: Host, pool: Pool) -> HostReport:
        key, now = ObjectKey(POOL, host.name), EPOCH + pool.now
        copies = tuple(self._report(copy, pool.now) for copy in host.copies.values())
        used = sum(copy.host for copy in copies)
        return HostReport(
            key,
            host.name,
            host.line,
            host.line,
            sleepers=Sleepers(host.sleepers, used),
            time=now,
            models=copies,
        )

    def _report(self, copy: Copy, now: float) -> Report:
        need, awake = copy.model.need, copy.state.awake
        return Report(
            copy.model.key,
            copy.model.revision,
            copy.state,
            weights=need.weights if awake else 0,
            workspace=need.workspace if awake else 0,
            kv=need.kv if awake else 0,
            host=need.host if copy.state is State.IN_HOST else 0,
            active=copy.active,
            rate=decayed(copy.rate, now - copy.last_used),
            last_used=EPOCH + copy.last_used,
            since=EPOCH + copy.since,
            going=copy in self._leaving,
        )

    def _move(self, pool: Pool, action: Move) -> None:
        source, target = pool.hosts[action.source.name], pool.hosts[action.host.name]
        pool.moves += 1
        copy = source.copies[action.model]
        _bring(pool, pool.place(pool.models[action.model], target), action.level)
        if copy.state is State.RESIDENT:
            self._leaving.add(copy)
        else:
            pool.unload(copy)


def _demand(key: ObjectKey, rate: float, pool: Pool, now: float) -> Demand:
    """Return the gateways' demand. Their rate of a model outlives its copies, whose hosts start at zero."""
    waiting = pool.waiting.get(key, ())
    return Demand(key, len(waiting), EPOCH + waiting[0].at if waiting else 0.0, rate)


def _bring(pool: Pool, copy: Copy, level: Level) -> None:
    if level is Level.RESIDENT:
        pool.wake(copy)


def _replaced(pool: Pool, copy: Copy) -> bool:
    others = (other for other in pool.copies(copy.model.key) if other is not copy)
    return not copy.active and any(other.state is State.RESIDENT for other in others)
