"""Whatever is there and whatever happens: a plan is never harmful, and in the end there is what was asked for."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from operator_support.objects import EPOCH, UID, spec_of
from operator_support.world import SimulatedPod, State, World

from plimsoll_operator.conditions import Condition, with_times
from plimsoll_operator.observe import ServiceState
from plimsoll_operator.plan import SURGE, CreatePod, DeletePod, Plan, plan
from plimsoll_operator.reasons import Reason
from plimsoll_operator.spec import Spec
from plimsoll_operator.status import Rejections, describe, view

HASHES = ("new", "newer", "old", "")
"""Present specs are among the first two; "" is a pod that lost its label."""
SETTLE_ROUNDS = 120
PHASES = {"Pending", "Loading", "Ready", "Updating", "Degraded", "Failed", "Stopped"}

pods = st.builds(
    SimulatedPod,
    name=st.uuids().map(lambda uid: f"found-{uid.hex[:8]}"),
    hash=st.sampled_from(HASHES),
    state=st.sampled_from(State),
    created=st.integers(-900, 0).map(lambda seconds: EPOCH + timedelta(seconds=seconds)),
    owner=st.sampled_from([UID, UID, UID, "another's", ""]),
    gone_by=st.none() | st.integers(-300, 60).map(lambda seconds: EPOCH + timedelta(seconds=seconds)),
)


@cache
def status_schema() -> Any:
    """The validator of a status, from the schema that the API server uses."""
    crd = yaml.safe_load(next(Path(__file__).parents[3].glob("crds/*modeldeployment*.yaml")).read_text())
    return jsonschema.Draft202012Validator(
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    )


class Rolling(RuleBasedStateMachine):
    """An operator that is killed anywhere in its passes, over pods that live, die and hang as they like."""

    world: World
    spec: Spec
    hash: str

    @initialize(
        found=st.lists(pods, max_size=9, unique_by=lambda pod: pod.name),
        replicas=st.integers(0, 4),
        service=st.sampled_from([state for state in ServiceState if state is not ServiceState.LEFT_OVER]),
    )
    def begin(self, found: list[SimulatedPod], replicas: int, service: ServiceState) -> None:
        self.world = World(found, service)
        self.hash = "new"
        self.spec = spec_of(replicas=replicas)

    @rule(cut=st.integers(0, 12))
    def make_a_pass(self, cut: int) -> None:
        """Killed after so many actions."""
        for action in self.planned().actions[:cut]:
            live, ready = self.world.live, self.world.ready
            self.world.apply([action], self.hash)
            assert self.world.live <= max(live, self.spec.replicas + SURGE)
            assert self.world.ready >= min(ready, self.spec.replicas)

    @rule(replicas=st.integers(0, 4))
    def scale(self, replicas: int) -> None:
        self.spec = spec_of(replicas=replicas)

    @rule(pod_hash=st.sampled_from(HASHES[:2]))
    def change_the_spec(self, pod_hash: str) -> None:
        self.hash = pod_hash

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self.world.proceed(data.draw(st.sampled_from(self.world.pods)))

    @precondition(lambda self: self.world.ours())
    @rule(data=st.data(), state=st.sampled_from(State))
    def have_bad_luck(self, data: st.DataObject, state: State) -> None:
        pod = data.draw(st.sampled_from(self.world.ours()))
        if pod.live:
            pod.become(state, self.world.now)

    @rule(service=st.sampled_from([ServiceState.MISSING, ServiceState.CHANGED]))
    def touch_the_service(self, service: ServiceState) -> None:
        self.world.service = service

    @rule(seconds=st.sampled_from([1, 9, 61, 3600]))
    def pass_time(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    @invariant()
    def the_status_is_true(self) -> None:
        fields, conditions = self.described()
        of = {c.type: c for c in conditions}
        written = with_times(conditions, [], self.spec.generation, self.world.now)
        status_schema().validate({**fields, "conditions": written})
        assert fields["phase"] in PHASES
        assert of["Ready"].status == (
            self.spec.replicas > 0 and all(of[t].status for t in ("Placed", "Loaded", "Routable"))
        )
        if of["Progressing"].reason is Reason.SETTLED:
            assert self.world.live == self.world.ready == self.spec.replicas
            assert not self.moves(self.planned())

    def planned(self) -> Plan:
        return plan(self.spec, self.hash, self.world.observed())

    def described(self) -> tuple[dict[str, Any], list[Condition]]:
        return describe(view(self.spec, self.hash, self.world.observed()), Rejections())

    def moves(self, planned: Plan) -> list[object]:
        """Actions on pods that live."""
        dead = {p.name for p in self.world.pods if not p.live}
        return [
            a for a in planned.actions if isinstance(a, CreatePod) or (isinstance(a, DeletePod) and a.name not in dead)
        ]

    def teardown(self) -> None:
        """Now all goes well: it comes to rest at what was asked for."""
        if not hasattr(self, "world"):
            return
        strangers = [p for p in self.world.pods if p.owner != UID]
        for _ in range(SETTLE_ROUNDS):
            planned = self.planned()
            if planned == Plan(()) and all(p.ready for p in self.world.ours()):
                break
            self.make_a_pass(len(planned.actions))
            for pod in self.world.ours():
                self.world.proceed(pod)
            self.world.now += planned.wait or timedelta(seconds=1)
        assert [(p.hash, p.state) for p in self.world.ours()] == [(self.hash, State.READY)] * self.spec.replicas
        assert self.planned() == Plan(())
        assert [p for p in self.world.pods if p.owner != UID] == strangers
        assert self.world.service in (ServiceState.OURS, ServiceState.FOREIGN)
        assert {c.type: c.reason for c in self.described()[1]}["Progressing"] is Reason.SETTLED


Rolling.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestRolling = Rolling.TestCase
