"""Pods of two revisions under any events: never too many, never too few that serve, and as wanted in the end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from operator_support.objects import spec_of
from operator_support.world import SimulatedPod, State, World, fits_of

from plimsoll_operator.canary.rule import begin, taken_back
from plimsoll_operator.canary.sizes import canary_pods
from plimsoll_operator.canary.split import CanarySplit, Sides, plan_split, split_of
from plimsoll_operator.canary.state import Canary
from plimsoll_operator.canary.state import State as Phase
from plimsoll_operator.planning.actions import CreatePod, DeletePod
from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.planning.pods import ServiceState
from plimsoll_operator.spec.canary import CanarySpec, read_canary_spec
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.rollout import Rollout

STABLE, CANARY, OTHER = "a-i-1", "b-i-1", "c-i-1"
FOUND = read_canary_spec({"steps": [{"weight": weight} for weight in (1, 10, 34, 50, 100)]})
assert FOUND is not None
TERMS: CanarySpec = FOUND
SIDES = (CANARY, STABLE, CANARY)
NODES = ("n1", "n2")
GOOD = Node(cordoned=False, lost=False)
ROUNDS = 120

surging = st.builds(
    Rollout,
    max_surge=st.sampled_from([1, 1, 0, 2, "50%"]),
    max_unavailable=st.sampled_from([None, None, 0, 1, "50%"]),
)
rollouts = surging | surging | surging.map(Rollout.one_after_the_other)


class Staging(RuleBasedStateMachine):
    """A canary that moves up and down its steps and is rolled back, over pods that live, die and hang at random."""

    world: World
    spec: Spec
    canary: Canary

    @initialize(replicas=st.integers(0, 5), rollout=rollouts, strangers=st.integers(0, 2))
    def begin(self, replicas: int, rollout: Rollout, strangers: int) -> None:
        """Start with ready pods, some of which may be left of an earlier canary."""
        self.world = World(service=ServiceState.OURS, nodes=dict.fromkeys(NODES, GOOD))
        self.spec = replace(spec_of(replicas=replicas), rollout=rollout)
        self.canary = begin("b", "a", TERMS, self.world.now)
        others = min(strangers, replicas)
        for number in range(replicas):
            made_of = OTHER if number < others else STABLE
            pod = SimulatedPod(f"p{number}", made_of, State.READY, self.world.now, group=str(number))
            self.world.pods.append(pod)

    @property
    def split(self) -> CanarySplit:
        fits_present, fits_stable = fits_of(CANARY), fits_of(STABLE)
        sides = Sides(self.spec, self.spec, fits_present, fits_stable)
        return split_of(self.canary, TERMS, sides, self.world.observed())

    @rule(cut=st.integers(0, 9))
    def make_a_pass(self, cut: int) -> None:
        """Do one reconcile that is killed after some actions."""
        split, planned = self.split, plan_split(self.split)
        replicas, rollout = self.spec.replicas, self.spec.rollout
        promised = replicas - rollout.unavailable(replicas)
        actions = [
            (action, made_of) for (_, part), made_of in zip(planned.parts, SIDES, strict=True) for action in part
        ]
        for action, made_of in actions[:cut]:
            live, useful = self.world.live, self.useful()
            self.world.apply([action], made_of)
            assert self.world.live <= max(live, replicas + rollout.surge(replicas)), f"{action} at {split.canary}"
            assert self.useful() >= min(useful, promised), f"{action} at {split.canary}"

    def useful(self) -> int:
        """Return the number of ready pods that get requests; those of a rolled-back canary do only if there are no
        others.
        """
        ready = [p for p in self.world.ours() if p.ready]
        if self.canary.state is Phase.TAKEN_BACK:
            return sum(not p.hash.startswith("b") for p in ready) or min(1, len(ready))
        return len(ready)

    @rule(step=st.integers(1, len(TERMS.steps)))
    def move(self, step: int) -> None:
        if self.canary.state is not Phase.TAKEN_BACK:
            self.canary = replace(self.canary, step=step)

    @rule()
    def take_back(self) -> None:
        self.canary = taken_back(self.canary, "it fails", self.world.now)

    @rule(replicas=st.integers(0, 5))
    def scale(self, replicas: int) -> None:
        self.spec = replace(self.spec, replicas=replicas)

    @rule(name=st.sampled_from(NODES), cordoned=st.booleans())
    def change_a_node(self, name: str, cordoned: bool) -> None:
        self.world.nodes[name] = Node(cordoned=cordoned, lost=False)

    @rule(slots=st.none() | st.integers(0, 5))
    def change_the_room(self, slots: int | None) -> None:
        self.world.slots = slots

    @precondition(lambda self: self.world.ours())
    @rule(data=st.data(), state=st.sampled_from(State))
    def have_bad_luck(self, data: st.DataObject, state: State) -> None:
        pod = data.draw(st.sampled_from(self.world.ours()))
        if pod.live:
            pod.become(state, self.world.now)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self.world.proceed(data.draw(st.sampled_from(self.world.pods)))

    @rule(seconds=st.sampled_from([1, 61, 3600]))
    def pass_time(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    def teardown(self) -> None:
        """Without further faults, there are as many pods of each revision as the step says, and no others."""
        if not hasattr(self, "world"):
            return
        replicas, rollout = self.spec.replicas, self.spec.rollout
        self.world.slots = replicas + rollout.surge(replicas)
        self.world.nodes = dict.fromkeys(NODES, GOOD)
        for _ in range(ROUNDS):
            planned = plan_split(self.split)
            actions = planned.actions
            if not actions and all(p.ready for p in self.world.ours()):
                break
            self.make_a_pass(len(actions))
            for pod in self.world.ours():
                self.world.proceed(pod)
            self.world.now += planned.wait or timedelta(seconds=1)
        over = self.canary.state is Phase.TAKEN_BACK
        wanted = 0 if over else canary_pods(TERMS.steps[self.canary.step - 1].weight, replicas, rollout)
        stable = max(1, replicas - wanted) if replicas else 0
        made_of = sorted(p.hash for p in self.world.ours())
        assert made_of == [STABLE] * stable + [CANARY] * wanted, f"{self.canary.progress} of {replicas}, {rollout}"
        assert all(p.ready for p in self.world.ours())
        assert (self.split.ready, self.split.wanted) == (wanted, wanted)
        assert self.split.merged().older == ()
        assert not any(isinstance(a, DeletePod) for a in plan_split(self.split).actions)


Staging.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestStaging = Staging.TestCase


def test_a_canary_pod_on_a_draining_node_leaves_when_the_drain_evicts_it() -> None:
    """Both revisions have a pod, and a third would be too many: the operator deletes none of them, since the drain may
    evict the other one at the same time.
    """
    staging = Staging()
    staging.begin(replicas=1, rollout=Rollout(max_surge=1), strangers=0)
    staging.make_a_pass(cut=1)
    (pod,) = (p for p in staging.world.pods if p.hash == CANARY)
    pod.node, pod.state = "n2", State.READY
    staging.change_a_node("n2", cordoned=True)
    assert plan_split(staging.split).actions == ()
    assert staging.world.evict(1)
    staging.world.proceed(pod)
    (made,) = plan_split(staging.split).actions
    assert isinstance(made, CreatePod)
    staging.teardown()
