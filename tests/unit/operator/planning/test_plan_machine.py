"""For arbitrary states and events, a plan does no harm, and the wanted state is reached in the end."""

from __future__ import annotations

from dataclasses import replace
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
from operator_support.world import SimulatedPod, State, World, fits_of

from plimsoll_operator.planning.actions import CreatePod, DeletePod, Plan
from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.planning.plan import plan
from plimsoll_operator.planning.pod_view import PodView, view
from plimsoll_operator.planning.pods import ServiceState
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.rollout import Rollout
from plimsoll_operator.status.conditions import Condition, with_times
from plimsoll_operator.status.reasons import Reason
from plimsoll_operator.status.status import Rejections, describe

HASHES = ("new", "newer", "old", "", "new@other", "newer@other")
"""Present specs are among the first two; "" is a pod that lost its label; the last two differ only by their image."""
NODES = ("n1", "n2")
GOOD = Node(cordoned=False, lost=False)
SETTLE_ROUNDS = 120
PHASES = {"Pending", "Loading", "Ready", "Updating", "Degraded", "Failed", "Stopped"}

pods = st.builds(
    SimulatedPod,
    name=st.uuids().map(lambda uid: f"found-{uid.hex[:8]}"),
    hash=st.sampled_from(HASHES),
    state=st.sampled_from(State),
    created=st.integers(-900, 0).map(lambda seconds: EPOCH + timedelta(seconds=seconds)),
    owner=st.sampled_from([UID, UID, UID, "another's", ""]),
    node=st.sampled_from(NODES),
    gone_by=st.none() | st.integers(-300, 60).map(lambda seconds: EPOCH + timedelta(seconds=seconds)),
)


@cache
def status_schema() -> Any:
    """Return a validator of a status with the CRD's schema."""
    crd = yaml.safe_load(next(Path(__file__).parents[4].glob("crds/*modeldeployment*.yaml")).read_text())
    return jsonschema.Draft202012Validator(
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    )


surging = st.builds(
    Rollout,
    max_surge=st.sampled_from([1, 1, 0, 2, "50%"]),
    max_unavailable=st.sampled_from([None, None, 0, 1, 2, "50%"]),
)
rollouts = surging | surging | surging.map(Rollout.one_after_the_other)


class Rolling(RuleBasedStateMachine):
    """An operator that is killed anywhere in its reconciles, over pods that live, die and hang at random."""

    world: World
    spec: Spec
    hash: str
    may_roll: bool

    @initialize(
        found=st.lists(pods, max_size=9, unique_by=lambda pod: pod.name),
        replicas=st.integers(0, 4),
        service=st.sampled_from([state for state in ServiceState if state is not ServiceState.LEFT_OVER]),
        rollout=rollouts,
        slots=st.none() | st.integers(0, 4),
    )
    def begin(
        self, found: list[SimulatedPod], replicas: int, service: ServiceState, rollout: Rollout, slots: int | None
    ) -> None:
        self.world = World(found, service, nodes=dict.fromkeys(NODES, GOOD), slots=slots)
        self.hash, self.may_roll = "new", True
        self.spec = replace(spec_of(replicas=replicas), rollout=rollout)

    @rule(cut=st.integers(0, 12))
    def make_a_pass(self, cut: int) -> None:
        """Do one reconcile that is killed after some actions."""
        replicas, rollout = self.spec.replicas, self.spec.rollout
        blocked = not rollout.surge(replicas) or any(p.state is State.UNSCHEDULABLE for p in self.world.ours())
        promised = replicas - (rollout.unavailable(replicas) if blocked else 0)
        for action in self.planned().actions[:cut]:
            live, ready, may_serve = self.world.live, self.world.ready, self.world.may_serve
            self.world.apply([action], self.hash)
            assert self.world.live <= max(live, replicas + rollout.surge(replicas))
            assert self.world.ready >= min(ready, promised)
            assert self.world.may_serve >= min(may_serve, promised)
        numbers = [int(group) for group in self.world.groups() if group.isdecimal()]
        assert len(set(numbers)) == len(numbers)

    @rule(replicas=st.integers(0, 4))
    def scale(self, replicas: int) -> None:
        self.spec = replace(self.spec, replicas=replicas)

    @rule(rollout=rollouts)
    def change_the_rollout(self, rollout: Rollout) -> None:
        self.spec = replace(self.spec, rollout=rollout)

    @rule(name=st.sampled_from(NODES), cordoned=st.booleans(), lost=st.booleans())
    def change_a_node(self, name: str, cordoned: bool, lost: bool) -> None:
        self.world.nodes[name] = Node(cordoned=cordoned, lost=lost)

    @rule()
    def evict_a_pod(self) -> None:
        self.evict()

    def evict(self) -> bool:
        """Let a drain evict a pod, as the PodDisruptionBudget allows."""
        replicas = self.spec.replicas
        return self.world.evict(replicas - self.spec.rollout.unavailable(replicas))

    @rule(may_roll=st.booleans())
    def wait_for_a_turn(self, may_roll: bool) -> None:
        self.may_roll = may_roll

    @rule(slots=st.none() | st.integers(0, 4))
    def change_the_room(self, slots: int | None) -> None:
        self.world.slots = slots

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
        enough = self.world.ready >= max(1, self.spec.replicas - self.spec.rollout.unavailable(self.spec.replicas))
        assert of["Ready"].status == (self.spec.replicas == 0 or bool(of["Routable"].status and enough))
        assert ("Reconciling" in of) == bool(of["Progressing"].status)
        assert ("Stalled" in of) == (of["Progressing"].reason is Reason.PROGRESS_DEADLINE_EXCEEDED)
        if of["Progressing"].reason is Reason.SETTLED:
            assert self.world.live == self.world.ready == self.spec.replicas
            assert not self.moves(self.planned())

    def view(self) -> PodView[Spec]:
        return view(self.spec, fits_of(self.hash), self.world.observed(), may_roll=self.may_roll)

    def planned(self) -> Plan:
        return plan(self.view())

    def described(self) -> tuple[dict[str, Any], list[Condition]]:
        return describe(self.view(), Rejections())

    def moves(self, planned: Plan) -> list[object]:
        """Return the actions on live pods."""
        dead = {p.name for p in self.world.pods if not p.live}
        return [
            a for a in planned.actions if isinstance(a, CreatePod) or (isinstance(a, DeletePod) and a.name not in dead)
        ]

    def teardown(self) -> None:
        """Without further faults, the wanted state is reached on nodes that are not being drained.

        There is only the room that the rollout needs: for its surge, or none if pods may be missing.
        """
        if not hasattr(self, "world"):
            return
        strangers = [p for p in self.world.pods if p.owner != UID]
        replicas, rollout = self.spec.replicas, self.spec.rollout
        self.world.slots = replicas + (0 if rollout.unavailable(replicas) else rollout.surge(replicas))
        self.world.nodes["n2"] = GOOD
        self.world.nodes["n1"] = replace(self.world.nodes["n1"], lost=False)
        for _ in range(SETTLE_ROUNDS):
            evicted = self.evict()
            planned = self.planned()
            if not evicted and planned == Plan(()) and all(p.ready for p in self.world.ours()):
                break
            self.make_a_pass(len(planned.actions))
            for pod in self.world.ours():
                self.world.proceed(pod)
            self.world.now += planned.wait or timedelta(seconds=1)
        fine = (self.hash,) if self.may_roll else (self.hash, f"{self.hash}@other")
        assert [p.state for p in self.world.ours()] == [State.READY] * replicas
        assert all(p.hash in fine and not self.world.nodes[p.node].cordoned for p in self.world.ours())
        assert self.planned() == Plan(())
        assert [p for p in self.world.pods if p.owner != UID] == strangers
        assert self.world.service in (ServiceState.OURS, ServiceState.FOREIGN)
        waits = any(p.hash != self.hash for p in self.world.ours())
        reason = {c.type: c.reason for c in self.described()[1]}["Progressing"]
        assert reason is (Reason.ROLLOUT_QUEUED if waits else Reason.SETTLED)


Rolling.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestRolling = Rolling.TestCase
