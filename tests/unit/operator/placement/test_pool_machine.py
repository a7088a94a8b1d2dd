"""A pool whose hosts are lost, return and drain; in the end every model that fits is placed exactly once."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from placement_support.pools import HOSTS, MODELS, NOW, models
from placement_support.world import World

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.planner import plan
from plimsoll_operator.placement.records.host import Host, Sleepers
from plimsoll_operator.placement.records.level import Condition, State
from plimsoll_operator.placement.records.pool import Demand, PoolState

SETTLE = 40


class Living(RuleBasedStateMachine):
    """`state` is the true state of the hosts; `known` is their last report."""

    state: PoolState
    known: dict[ObjectKey, Host]

    @initialize(data=st.data(), count=st.integers(1, 4))
    def begin(self, data: st.DataObject, count: int) -> None:
        chosen = data.draw(st.lists(st.sampled_from(MODELS), unique=True, min_size=1))
        hosts = tuple(
            Host(key, f"node-{key.name}", 120, 100, device="cpu", sleepers=Sleepers(60), instance="one", time=NOW)
            for key in HOSTS[:count]
        )
        self.state = PoolState(NOW, tuple(data.draw(models(key)) for key in chosen), hosts)
        self.known = {host.key: host for host in hosts}

    @rule(seconds=st.sampled_from([1.0, 31.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.state = msgspec.structs.replace(self.state, now=self.state.now + seconds)

    @rule(condition=st.sampled_from(Condition), data=st.data())
    def a_host_changes(self, condition: Condition, data: st.DataObject) -> None:
        """A lost host serves no requests, and a returning one still has its models."""
        self._replace(data.draw(st.sampled_from(self.state.hosts)).key, condition=condition)

    @rule(data=st.data())
    def a_host_restarts(self, data: st.DataObject) -> None:
        host = data.draw(st.sampled_from(self.state.hosts))
        self._replace(host.key, models=(), sleepers=Sleepers(60), instance=host.instance + "'", sequence=0)

    @rule(data=st.data(), waiting=st.integers(0, 3))
    def requests_come(self, data: st.DataObject, waiting: int) -> None:
        key = data.draw(st.sampled_from(self.state.models)).key
        others = tuple(entry for entry in self.state.demand if entry.model != key)
        since = self.state.now - 5
        self.state = msgspec.structs.replace(self.state, demand=(*others, Demand(key, waiting, since, 0.01 * waiting)))

    @rule(data=st.data(), active=st.integers(0, 2))
    def a_model_is_used(self, data: st.DataObject, active: int) -> None:
        host = data.draw(st.sampled_from(self.state.hosts))
        used = tuple(
            msgspec.structs.replace(copy, active=active, rate=0.1) if copy.state is State.RESIDENT else copy
            for copy in host.models
        )
        self._replace(host.key, models=used)

    @rule()
    def the_operator_plans(self) -> None:
        self._hear()
        self.state = World(self._seen()).carry_out(plan(self._seen()))
        self._count()

    @invariant()
    def nothing_is_there_twice(self) -> None:
        for host in self.state.hosts if hasattr(self, "state") else ():
            keys = [copy.model for copy in host.models]
            assert len(keys) == len(set(keys))

    def teardown(self) -> None:
        """With all hosts back and no requests, what fits is placed as wanted, without duplicates."""
        if not hasattr(self, "state"):
            return
        self.state = msgspec.structs.replace(self.state, demand=())
        for host in self.state.hosts:
            idle = tuple(msgspec.structs.replace(copy, active=0) for copy in host.models)
            self._replace(host.key, condition=Condition.READY, models=idle)
        for _ in range(SETTLE):
            self.time_passes(700.0)
            self._hear()
            made = plan(self._seen())
            if not made.actions:
                break
            self.state = World(self._seen()).carry_out(made)
            self._count()
        assert not made.actions
        refused = {refusal.model for refusal in made.refusals}
        for model in self.state.models:
            lies = [host.key for host in self.state.hosts for copy in host.models if copy.model == model.key]
            wanted = min(model.placed, len(self.state.hosts))
            assert model.key in refused or len(lies) == wanted

    def _seen(self) -> PoolState:
        return msgspec.structs.replace(self.state, hosts=tuple(self.known.values()))

    def _hear(self) -> None:
        """Let every host report, with its clock."""
        self.known = {host.key: msgspec.structs.replace(host, time=self.state.now) for host in self.state.hosts}

    def _count(self) -> None:
        """Increase the sequence of every host."""
        counted = (msgspec.structs.replace(host, sequence=host.sequence + 1) for host in self.state.hosts)
        self.state = msgspec.structs.replace(self.state, hosts=tuple(counted))

    def _replace(self, key: ObjectKey, **changes: object) -> None:
        hosts = tuple(
            msgspec.structs.replace(host, **{"sequence": host.sequence + 1, **changes}) if host.key == key else host
            for host in self.state.hosts
        )
        self.state = msgspec.structs.replace(self.state, hosts=hosts)


TestLiving = Living.TestCase
TestLiving.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
