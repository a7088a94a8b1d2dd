"""Plans of single situations, with their reasons; test_plan_machine.py covers all others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from operator_support.objects import EPOCH, spec_of
from operator_support.world import SimulatedPod, State, World, fits_of

from plimsoll_operator.planning.actions import ApplyService, CreatePod, CreateService, DeletePod, Plan
from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.planning.plan import LONGEST_WAIT, ROOM_PATIENCE, ROUNDS_KEPT, plan
from plimsoll_operator.planning.pod_view import view
from plimsoll_operator.planning.pods import ServiceState
from plimsoll_operator.spec.rollout import Rollout

ROLLS = "the spec or the image has changed"


def pod(name: str, state: State = State.READY, pod_hash: str = "new", age: int = 100) -> SimulatedPod:
    return SimulatedPod(name, pod_hash, state, EPOCH - timedelta(seconds=age), ended=EPOCH - timedelta(seconds=age - 1))


def planned(replicas: int, *pods: SimulatedPod, service: ServiceState = ServiceState.OURS) -> Plan:
    return plan(view(spec_of(replicas=replicas), fits_of("new"), World(list(pods), service).observed()))


def deleted(found: Plan) -> list[str]:
    return [action.name for action in found.actions if isinstance(action, DeletePod)]


def test_nothing_is_there() -> None:
    assert planned(2, service=ServiceState.MISSING) == Plan(
        (
            CreateService("the Service is missing"),
            CreatePod("0 of 2 pods exist", "0"),
            CreatePod("0 of 2 pods exist", "1"),
        )
    )


def test_all_is_there() -> None:
    assert planned(2, pod("a"), pod("b")) == Plan(())


def test_pods_that_take_over_are_made_when_those_before_them_have_gone() -> None:
    """They get the same group, by which they find the stored data."""
    spec = spec_of(replicas=2, responses={"claim": "kept"})
    assert spec.rollout.surge(2) == 0
    world = World([pod("a", pod_hash="old"), pod("b", pod_hash="old")], ServiceState.OURS)
    for group, each in enumerate(world.pods):
        each.group = str(group)
    seen: list[list[str]] = []
    for step in range(30):
        found = plan(view(spec, fits_of("new"), world.observed()))
        seen.append(deleted(found) + [a.group for a in found.actions if isinstance(a, CreatePod)])
        draining = any(p.gone_by is not None for p in world.pods)
        assert not (draining and any(isinstance(action, CreatePod) for action in found.actions))
        world.apply(found.actions, "new")
        for each in list(world.pods):
            if each.gone_by is None or step % 4 == 3:  # they drain for some passes
                world.proceed(each)
    assert [step for step in seen if step] == [["a"], ["0"], ["b"], ["1"]]
    assert {p.hash for p in world.pods} == {"new"}


@pytest.mark.parametrize("service", [ServiceState.FOREIGN, ServiceState.LEFT_OVER])
def test_a_service_that_is_not_ours_is_left_alone(service: ServiceState) -> None:
    assert planned(1, pod("a"), service=service) == Plan(())


def test_a_changed_service_is_put_right() -> None:
    assert planned(1, pod("a"), service=ServiceState.CHANGED) == Plan(
        (ApplyService("the Service is not as it should be"),)
    )


def test_scaling_down_takes_what_serves_least() -> None:
    pods = [
        pod("old-ready", age=300),
        pod("new-ready", age=100),
        pod("loading", State.LOADING, age=400),
        pod("unscheduled", State.UNSCHEDULED, age=500),
    ]
    order = ["unscheduled", "loading", "new-ready", "old-ready"]
    for replicas in range(5):
        assert deleted(planned(replicas, *pods)) == order[: 4 - replicas]


def test_a_roll_keeps_pods_that_an_outage_makes_look_cut_off() -> None:
    """They still serve, and are deleted once all replicas of the new spec do."""
    old = [pod(name, State.CUT_OFF, "old") for name in "ab"]
    assert planned(2, *old) == Plan((CreatePod(ROLLS, "0"),))
    assert planned(2, *old, pod("c", State.LOADING)) == planned(2, *old, pod("c")) == Plan(())
    assert deleted(planned(2, *old, pod("c"), pod("d"))) == ["a", "b"]


def test_scaling_down_keeps_what_may_serve() -> None:
    pods = [pod("ready"), pod("cut-off", State.CUT_OFF, age=50), pod("loading", State.LOADING, age=400)]
    for replicas in range(3):
        assert deleted(planned(replicas, *pods)) == ["loading", "cut-off", "ready"][: 3 - replicas]


def test_a_roll_adds_one_before_it_takes_one() -> None:
    old = [pod("a", pod_hash="old"), pod("b", pod_hash="old")]
    assert planned(2, *old) == Plan((CreatePod(ROLLS, "0"),))
    assert planned(2, *old, pod("c", State.LOADING)) == Plan(())
    assert planned(2, *old, pod("c")) == Plan(
        (DeletePod("a", "uid-a", "its spec or image has changed"), CreatePod(ROLLS, "0"))
    )


def test_old_pods_that_do_not_serve_go_at_once() -> None:
    found = planned(2, pod("a", State.CRASHING, "old"), pod("b", State.LOADING, "old"))
    assert deleted(found) == ["a", "b"]
    assert found.actions[2:] == (CreatePod(ROLLS, "0"), CreatePod(ROLLS, "1"))


def test_a_new_spec_that_crashes_never_takes_the_old_pods() -> None:
    assert planned(2, pod("a", pod_hash="old"), pod("b", pod_hash="old"), pod("c", State.CRASHING)) == Plan(())


def test_a_crashing_pod_is_its_kubelets_to_start_again() -> None:
    assert planned(1, pod("a", State.CRASHING)) == Plan(())


def test_a_dead_pod_is_replaced_at_once_and_forgotten_once_its_replacement_serves() -> None:
    dead = pod("a", State.DEAD)
    assert planned(1, dead) == Plan((CreatePod("a has ended for good", "0"),))
    assert planned(1, dead, pod("b", State.LOADING)) == Plan(())
    assert planned(1, dead, pod("b")) == Plan((DeletePod("a", "uid-a", "it has ended for good"),))


def roll(replicas: int, *pods: SimulatedPod, age: int = 0, **more: Any) -> Plan:
    """Plan a rollout. `age` is the age of the newest pods."""
    rollout = {name: more.pop(name) for name in ("max_surge", "max_unavailable") if name in more}
    spec = replace(spec_of(replicas=replicas, template=more.pop("template", {})), rollout=Rollout(**rollout))
    world = World(list(pods), ServiceState.OURS, EPOCH + timedelta(seconds=age), more.pop("nodes", {}))
    return plan(view(spec, fits_of("new"), world.observed(), **more))


def test_where_no_room_is_an_old_pod_goes_first_as_far_as_some_may_be_missing() -> None:
    old = [pod("a", pod_hash="old"), pod("b", pod_hash="old")]
    stuck = pod("c", State.UNSCHEDULABLE, age=0)
    patience = int(ROOM_PATIENCE.total_seconds())
    assert roll(2, *old, stuck) == Plan((), ROOM_PATIENCE)
    assert roll(2, *old, stuck, age=patience - 1) == Plan((), timedelta(seconds=1))
    found = roll(2, *old, stuck, age=patience)
    assert deleted(found) == ["a"]
    assert isinstance(found.actions[0], DeletePod)
    assert "its replacement cannot start before it is gone" in found.actions[0].why
    assert roll(2, *old, stuck, age=patience, max_unavailable=0) == Plan(())
    draining = pod("x", pod_hash="old")
    draining.gone_by = EPOCH + timedelta(seconds=99)
    assert deleted(roll(2, old[0], draining, stuck, age=patience)) == []
    three = [*old, pod("d", pod_hash="old"), draining]
    assert deleted(roll(3, *three, stuck, age=patience)) == [], "its room is on its way"


def test_the_only_pod_stays_unless_it_may_be_missing() -> None:
    pods, patience = [pod("a", pod_hash="old"), pod("b", State.UNSCHEDULABLE, age=0)], 60
    assert roll(1, *pods, age=patience) == Plan(())
    assert deleted(roll(1, *pods, age=patience, max_unavailable=1)) == ["a"]


def test_without_surge_old_pods_go_first() -> None:
    old = [pod(name, pod_hash="old") for name in "abc"]
    found = roll(3, *old, max_surge=0, max_unavailable=2)
    assert deleted(found) == ["a", "b"]
    assert len(found.actions) == 4
    assert roll(3, old[2], pod("d", State.LOADING), pod("e", State.LOADING), max_surge=0, max_unavailable=2) == Plan(())


def test_without_surge_a_drain_evicts_the_pods_of_its_node() -> None:
    """It may evict one while the operator would delete another: both would be missing."""
    nodes = {"n1": Node(cordoned=True, lost=False), "n2": Node(cordoned=False, lost=False)}
    there = pod("b")
    there.node = "n2"
    assert roll(2, pod("a"), there, nodes=nodes, max_surge=0, max_unavailable=1) == Plan(())
    old = pod("a", pod_hash="old")
    assert deleted(roll(2, old, there, nodes=nodes, max_surge=0, max_unavailable=1)) == ["a"]


def test_surge_makes_several_at_once() -> None:
    old = [pod(name, pod_hash="old") for name in "abcd"]
    assert roll(4, *old, max_surge="50%").actions == (CreatePod(ROLLS, "0"), CreatePod(ROLLS, "1"))


def test_a_pod_is_replaced_before_its_node_is_drained() -> None:
    nodes = {"n1": Node(cordoned=True, lost=False), "n2": Node(cordoned=False, lost=False)}
    here, there = pod("a"), pod("b")
    there.node = "n2"
    assert roll(1, here, nodes=nodes) == Plan((CreatePod("node n1 is being drained", "0"),))
    assert roll(1, here, pod("b", State.UNSCHEDULED), nodes=nodes) == Plan(())
    assert roll(1, here, there, nodes=nodes) == Plan((DeletePod("a", "uid-a", "its node n1 is being drained"),))
    stuck = pod("b", State.UNSCHEDULABLE)
    assert roll(1, here, stuck, nodes=nodes, age=600, max_unavailable=1) == Plan(()), "its room would be of no use"
    loading = pod("a", State.LOADING)
    assert roll(1, loading, nodes=nodes) == Plan((CreatePod("node n1 is being drained", "0"),))
    assert deleted(roll(1, loading, there, nodes=nodes)) == ["a"]


@pytest.mark.parametrize(
    ("toleration", "moves"),
    [
        ({"operator": "Exists"}, False),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoExecute"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
    ],
)
def test_a_pod_that_would_be_put_there_again_is_not_moved(toleration: dict[str, str], moves: bool) -> None:
    nodes = {"n1": Node(cordoned=True, lost=False)}
    assert bool(roll(1, pod("a"), nodes=nodes, template={"tolerations": [toleration]}).actions) is moves


def test_who_waits_for_a_turn_is_left_alone_and_still_scaled() -> None:
    waiting = [pod("a", pod_hash="new@other"), pod("b", pod_hash="new@other")]
    assert roll(2, *waiting, may_roll=False) == Plan(())
    assert len(roll(2, *waiting).actions) == 1
    assert roll(3, *waiting, may_roll=False) == Plan((CreatePod("2 of 3 pods exist", "0"),))
    assert deleted(roll(1, *waiting, may_roll=False)) == ["a"]
    assert deleted(roll(2, pod("a", pod_hash="old"), waiting[1], pod("c"), may_roll=False)) == ["a"]


@pytest.mark.parametrize("replicas", [1, 3])
def test_pods_that_die_at_once_are_made_ever_more_slowly(replicas: int) -> None:
    """A node rejects every pod for two hours."""
    spec, world, made = spec_of(replicas=replicas), World(service=ServiceState.OURS), []
    end = world.now + timedelta(hours=2)
    while world.now < end:
        found = plan(view(spec, fits_of("new"), world.observed()))
        world.apply(found.actions, "new")
        made += [world.now for action in found.actions if isinstance(action, CreatePod)]
        for dying in world.pods:
            if dying.live:
                dying.become(State.DEAD, world.now)
        assert len(world.pods) <= (ROUNDS_KEPT + 1) * replicas
        world.now += found.wait or timedelta(seconds=1)
    rounds = made[::replicas]
    assert made == [time for time in rounds for _ in range(replicas)]
    pauses = [after - before for before, after in pairwise(rounds)]
    assert pauses[0] <= timedelta(seconds=2)
    assert all(later >= earlier for earlier, later in pairwise(pauses))
    assert LONGEST_WAIT <= pauses[-1] <= LONGEST_WAIT + timedelta(seconds=2)
    assert len(rounds) < 35
