"""Plans of single situations, with their reasons; test_plan_machine.py tries all others."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from operator_support.objects import EPOCH, spec_of
from operator_support.world import SimulatedPod, State, World

from plimsoll_operator.observe import ServiceState
from plimsoll_operator.plan import LONGEST_WAIT, ROUNDS_KEPT, ApplyService, CreatePod, DeletePod, Plan, plan


def pod(name: str, state: State = State.READY, pod_hash: str = "new", age: int = 100) -> SimulatedPod:
    return SimulatedPod(name, pod_hash, state, EPOCH - timedelta(seconds=age), ended=EPOCH - timedelta(seconds=age - 1))


def planned(replicas: int, *pods: SimulatedPod, service: ServiceState = ServiceState.OURS) -> Plan:
    return plan(spec_of(replicas=replicas), "new", World(list(pods), service).observed())


def deleted(found: Plan) -> list[str]:
    return [action.name for action in found.actions if isinstance(action, DeletePod)]


def test_nothing_is_there() -> None:
    assert planned(2, service=ServiceState.MISSING) == Plan(
        (ApplyService("the Service is missing"), CreatePod("0 of 2 are there"), CreatePod("0 of 2 are there"))
    )


def test_all_is_there() -> None:
    assert planned(2, pod("a"), pod("b")) == Plan(())


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


def test_a_roll_adds_one_before_it_takes_one() -> None:
    old = [pod("a", pod_hash="old"), pod("b", pod_hash="old")]
    assert planned(2, *old) == Plan((CreatePod("the spec has changed"),))
    assert planned(2, *old, pod("c", State.LOADING)) == Plan(())
    assert planned(2, *old, pod("c")) == Plan(
        (DeletePod("a", "uid-a", "its spec has changed"), CreatePod("the spec has changed"))
    )


def test_old_pods_that_do_not_serve_go_at_once() -> None:
    found = planned(2, pod("a", State.CRASHING, "old"), pod("b", State.LOADING, "old"))
    assert deleted(found) == ["a", "b"]
    assert found.actions[2:] == (CreatePod("the spec has changed"),) * 2


def test_a_new_spec_that_crashes_never_takes_the_old_pods() -> None:
    assert planned(2, pod("a", pod_hash="old"), pod("b", pod_hash="old"), pod("c", State.CRASHING)) == Plan(())


def test_a_crashing_pod_is_its_kubelets_to_start_again() -> None:
    assert planned(1, pod("a", State.CRASHING)) == Plan(())


def test_a_dead_pod_is_replaced_at_once_and_forgotten_once_its_replacement_serves() -> None:
    dead = pod("a", State.DEAD)
    assert planned(1, dead) == Plan((CreatePod("a has ended for good"),))
    assert planned(1, dead, pod("b", State.LOADING)) == Plan(())
    assert planned(1, dead, pod("b")) == Plan((DeletePod("a", "uid-a", "it has ended for good"),))


@pytest.mark.parametrize("replicas", [1, 3])
def test_pods_that_die_at_once_are_made_ever_more_slowly(replicas: int) -> None:
    """A node refuses every pod for two hours."""
    spec, world, made = spec_of(replicas=replicas), World(service=ServiceState.OURS), []
    end = world.now + timedelta(hours=2)
    while world.now < end:
        found = plan(spec, "new", world.observed())
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
