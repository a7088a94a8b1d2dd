"""Plans for groups whose pods are lost, rejected, or have labels that someone changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from operator_support.objects import EPOCH, grouped
from operator_support.world import SimulatedPod, State, World, fits_of

from plimsoll_operator.build.disruption_budget import build_budget
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.pod_revision import fits, revision, user_part
from plimsoll_operator.canary.split import Sides, plan_split, split_of
from plimsoll_operator.canary.state import Canary
from plimsoll_operator.canary.state import State as Phase
from plimsoll_operator.planning.actions import CreatePod, DeletePod, Plan
from plimsoll_operator.planning.group_placement import begin_turn, end_turn
from plimsoll_operator.planning.group_turns import GroupTurns, Turn
from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.planning.plan import plan
from plimsoll_operator.planning.pod_view import PodView, view
from plimsoll_operator.planning.pods import ServiceState
from plimsoll_operator.spec.canary import read_canary_spec
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.status.reasons import Reason
from plimsoll_operator.status.status import placed_of

HOUR = timedelta(hours=1)
MAY, MAY_NOT = Turn(limited=True), Turn(limited=True, may_place=False)


def pod(name: str, index: int, group: str = "0", state: State = State.READY, **changes: object) -> SimulatedPod:
    """Return a pod of a group of two that was created an hour ago."""
    leader = "" if index == 0 else f"10-l{group}"
    found = SimulatedPod(name, "new", state, EPOCH - HOUR, group=group, index=index, size=2, leader=leader)
    return replace(found, **changes)  # type: ignore[arg-type]


def whole(group: str, **changes: object) -> list[SimulatedPod]:
    return [pod(f"l{group}", 0, group, **changes), pod(f"w{group}", 1, group, **changes)]  # type: ignore[arg-type]


def seen_of(world: World, spec: Spec, turn: Turn = MAY) -> PodView[Spec]:
    return view(spec, fits_of("new"), replace(world.observed(), turn=turn))


def world_of(pods: Sequence[SimulatedPod]) -> World:
    return World(list(pods), ServiceState.OURS, size=2)


def settled(world: World, spec: Spec, rounds: int = 20) -> Plan:
    """Let plans and kubelets act in turns until nothing changes; return the last plan."""
    for _ in range(rounds):
        planned = plan(seen_of(world, spec))
        if not planned.actions and all(p.ready for p in world.ours()):
            return planned
        world.apply(planned.actions, "new")
        for each in world.ours():
            world.proceed(each)
        world.now += timedelta(seconds=1)
    raise AssertionError(f"not settled: {planned}")


@pytest.mark.parametrize(
    ("changed", "labels"),
    [
        (0, {"size": 1}),
        (0, {"size": 3}),
        (0, {"index": 1}),
        (0, {"group": ""}),
        (0, {"hash": ""}),
        (1, {"size": 1}),
        (1, {"index": 0}),
        (1, {"group": ""}),
        (1, {"hash": ""}),
    ],
)
def test_a_group_with_changed_labels_is_made_whole_again(changed: int, labels: dict[str, object]) -> None:
    pods = whole("0")
    pods[changed] = replace(pods[changed], **labels)  # type: ignore[arg-type]
    world = world_of(pods)
    settled(world, grouped(2))
    assert sorted((p.index, p.size) for p in world.ours()) == [(0, 2), (1, 2)]
    assert len({p.group for p in world.ours()}) == 1
    assert len({p.leader for p in world.ours()} - {""}) == 1


def test_a_group_that_is_given_back_is_not_made_anew_at_once() -> None:
    lost = pod("w0", 1, state=State.UNSCHEDULABLE, created=EPOCH - timedelta(seconds=61))
    planned = plan(seen_of(world_of([pod("l0", 0), lost]), grouped(2)))
    assert planned.given_back
    assert planned.waits_for_turn
    assert [type(action) for action in planned.actions] == [DeletePod, DeletePod]


def test_a_group_that_lost_a_pod_does_not_say_that_it_waits_for_a_turn() -> None:
    spec, lost = grouped(2), pod("w0", 1, state=State.UNSCHEDULABLE, created=EPOCH)
    told = placed_of(seen_of(world_of([pod("l0", 0), lost]), spec, MAY_NOT), None)
    assert (told.reason, told.message) == (Reason.UNSCHEDULABLE, "w0: 0/2 nodes")
    assert placed_of(seen_of(world_of([pod("l0", 0)]), spec, MAY_NOT), None).reason is Reason.WAITING_FOR_PODS
    assert placed_of(seen_of(world_of([]), spec, MAY_NOT), None).reason is Reason.WAITS_FOR_TURN


def test_a_group_whose_first_evicted_pod_has_left_a_draining_node_leaves_as_a_whole() -> None:
    """Its other pods have to leave too, and the budget protects the other group until it is made anew."""
    world = world_of([*whole("0", node="n1"), *whole("1", node="n2")])
    world.nodes = {"n1": Node(cordoned=True, lost=False), "n2": Node(cordoned=False, lost=False)}
    spec = grouped(pods=2, replicas=2, rollout={"maxSurge": 0, "maxUnavailable": 1})
    assert plan(seen_of(world, spec)).actions == ()
    assert world.evict(3)
    deleted = [action.name for action in plan(seen_of(world, spec)).actions if isinstance(action, DeletePod)]
    assert deleted == ["w0"]
    assert not world.evict(3)
    settled(world, spec)
    assert {p.node for p in world.ours()} == {"n2"}


def reconcile_rejected(world: World, turns: GroupTurns, spec: Spec) -> Plan:
    """Do a reconcile whose new pods the API server rejects; return its plan."""
    turn, _ = begin_turn(turns, spec, world.observed().pods, world.now)
    seen = seen_of(world, spec, turn)
    planned = plan(seen)
    end_turn(turns, seen, planned)
    if any(isinstance(action, CreatePod) for action in planned.actions):
        end_turn(turns, seen, planned, "exceeded quota")
    world.apply([action for action in planned.actions if isinstance(action, DeletePod)], "new")
    return planned


def test_placed_of_a_rejected_group_is_the_same_between_tries() -> None:
    world, turns, spec = world_of([]), GroupTurns(), grouped(2)
    for _ in range(60):
        reconcile_rejected(world, turns, spec)
        seen = seen_of(world, spec, begin_turn(turns, spec, (), world.now)[0])
        assert placed_of(seen, None) == placed_of(seen, "exceeded quota")
        world.now += timedelta(seconds=1)


def test_a_roll_whose_pods_are_rejected_keeps_the_old_groups() -> None:
    pods = [each for group in "012" for each in whole(group, hash="old")]
    world, turns, spec = world_of(pods), GroupTurns(), grouped(2, replicas=3)
    for _ in range(200):
        reconcile_rejected(world, turns, spec)
        world.now += timedelta(seconds=1)
    assert world.ready == 6


def test_a_leader_whose_workers_are_rejected_is_given_back() -> None:
    leader = pod("l0", 0, created=EPOCH, state=State.LOADING)
    world, turns, spec, words = world_of([leader]), GroupTurns(), grouped(2), set()
    for _ in range(90):
        words.add(reconcile_rejected(world, turns, spec).given_back)
        world.now += timedelta(seconds=1)
    assert not any(p.live for p in world.ours())
    assert words == {"", "1 of 2 pods could be created: exceeded quota"}


def test_a_group_whose_lost_worker_is_rejected_for_a_while_stays() -> None:
    """A pod that ends counts in a quota until it is gone."""
    world, turns, spec = world_of([pod("l0", 0)]), GroupTurns(), grouped(2)
    for _ in range(50):
        reconcile_rejected(world, turns, spec)
        world.now += timedelta(seconds=1)
    assert [p.name for p in world.ours() if p.live] == ["l0"]


@pytest.mark.parametrize(("replicas", "pods"), [(2, 2), (3, 2), (2, 8)])
def test_the_budget_lets_no_more_groups_be_hit_at_once_than_may_be_missing(replicas: int, pods: int) -> None:
    """The other pods of a group that lost one stay ready for some seconds, and each eviction may hit another group."""
    spec = grouped(pods, replicas=replicas)
    budget = build_budget(spec)
    assert budget is not None
    assert replicas * pods - budget["spec"]["minAvailable"] <= spec.rollout.unavailable(replicas)


def test_a_canary_without_room_takes_that_of_a_stable_group() -> None:
    """Like a canary of single pods, whose pod stays without a node until a stable one is deleted."""
    image, stable = Image("runtime:1"), grouped(2, replicas=3)
    present = grouped(2, replicas=3, runtime={"maxModelLen": 100})
    terms = read_canary_spec({"steps": [{"weight": 10}]})
    assert terms is not None
    canary = Canary(user_part(present), user_part(stable), 1, 1, 0, Phase.STARTING, EPOCH, "", "")
    world = world_of([each for group in "012" for each in whole(group, hash=revision(stable, image))])
    sides = Sides(present, stable, fits(present, image), fits(stable, image))
    turn = Turn(limited=True, tries=3, words="no node")
    planned = plan_split(split_of(canary, terms, sides, replace(world.observed(), turn=turn)))
    assert any(isinstance(action, DeletePod) for action in planned.actions)


def spec_named(name: str) -> Spec:
    return grouped(2, name=name)
