"""Units: what plans count as one replica, for one and for several pods a replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_support.objects import EPOCH, grouped
from operator_support.world import SimulatedPod, State, World, fits_of

from plimsoll_operator.build.disruption_budget import build_budget
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.model import build_pod
from plimsoll_operator.canary.rule import begin, taken_back
from plimsoll_operator.canary.split import Sides, plan_split, split_of
from plimsoll_operator.planning.actions import Action, CreatePod, DeletePod, Plan
from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.planning.plan import FIRST_WAIT, plan
from plimsoll_operator.planning.pod_view import view
from plimsoll_operator.planning.pods import Pod, ServiceState, observe_pods, read_pod
from plimsoll_operator.planning.units import Unit, units_of
from plimsoll_operator.spec.canary import CanarySpec, read_canary_spec
from plimsoll_operator.spec.identity import GROUP_LABEL, INDEX_LABEL, SIZE_LABEL
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.rollout import Rollout
from plimsoll_operator.status.pod_failure import Failure
from plimsoll_operator.status.reasons import Reason

NODES = {"n1": Node(cordoned=True, lost=False), "n2": Node(cordoned=False, lost=True)}
OF_UNITS_ONLY = {"pods", "size", "whole", "leaderless"}
ROUNDS = 200
STABLE, CANARY = "a-i-1", "b-i-1"
FOUND = read_canary_spec({"steps": [{"weight": weight} for weight in (1, 34, 100)]})
assert FOUND is not None
TERMS: CanarySpec = FOUND
BEGUN = begin("b", "a", TERMS, EPOCH)

seconds = st.integers(-300, 60).map(lambda number: timedelta(seconds=number))


@st.composite
def simulated(draw: st.DrawFn, size: int, hashes: Sequence[str] = ("new",), groups: int = 4) -> SimulatedPod:
    """Return a pod in any state. Each group has one hash, as the operator creates them."""
    group = draw(st.integers(0, groups - 1))
    return SimulatedPod(
        name=f"found-{draw(st.uuids()).hex[:8]}",
        hash=hashes[group % len(hashes)],
        state=draw(st.sampled_from(State)),
        created=EPOCH - timedelta(seconds=draw(st.integers(0, 900))),
        gone_by=draw(st.none() | st.just(EPOCH + timedelta(seconds=30))),
        node=draw(st.sampled_from(sorted(NODES))),
        group=str(group),
        index=draw(st.integers(0, size - 1)),
        size=size,
    )


def member(pod: SimulatedPod) -> tuple[object, ...]:
    """Return the same for two pods that the operator never creates together."""
    ended = pod.gone_by is None and pod.state in (State.DEAD, State.DONE)
    return (pod.name,) if ended else (pod.group, pod.index)


def worlds(size: int, hashes: Sequence[str] = ("new", "old")) -> st.SearchStrategy[list[SimulatedPod]]:
    return st.lists(simulated(size, hashes), max_size=9, unique_by=member)


def pod(name: str, state: State = State.READY, index: int = 0, size: int = 2, group: str = "0") -> SimulatedPod:
    return SimulatedPod(name, "new", state, EPOCH, group=group, index=index, size=size)


def observed(*pods: SimulatedPod) -> tuple[Pod, ...]:
    return observe_pods([read_pod(each.json()) for each in pods], EPOCH, NODES)


def unit(*pods: SimulatedPod) -> Unit:
    (found,) = units_of(observed(*pods))
    return found


@given(st.data(), st.integers(1, 3))
def test_a_pod_is_in_one_unit_with_others_of_its_group_hash_and_state(data: st.DataObject, size: int) -> None:
    strays = st.builds(replace, simulated(size, groups=2), hash=st.sampled_from(["new", "old"]))
    pods = observed(*data.draw(st.lists(strays, max_size=12, unique_by=lambda each: each.name)))
    found = units_of(pods)
    assert Counter(p.uid for each in found for p in each.pods) == Counter(p.uid for p in pods)
    for each in found:
        assert {(p.group, p.hash, p.revision) for p in each.pods} == {(each.group, each.hash, each.revision)}
        assert len({(p.live, p.stopping, p.dead) for p in each.pods}) == 1
        indices = [p.index for p in each.pods]
        assert indices == sorted(set(indices))
        assert each.ready == (len(indices) == size and all(p.ready for p in each.pods))


@given(st.data())
def test_a_single_pod_is_a_unit_that_answers_as_it_does(data: st.DataObject) -> None:
    """Whatever its labels for group and index say: operators of before did not read them."""
    drawn = data.draw(st.lists(simulated(3), max_size=12, unique_by=lambda each: each.name))
    worths = data.draw(st.lists(st.floats(-1, 9), min_size=12, max_size=12))
    pods = [replace(each, size=1, worth=worth) for each, worth in zip(observed(*drawn), worths, strict=False)]
    found = units_of(pods)
    assert [each.pods for each in found] == [(each,) for each in pods]
    for each, single in zip(found, pods, strict=True):
        assert (each.whole, each.leaderless) == (True, False)
        for field in fields(Unit):
            if field.name not in OF_UNITS_ONLY:
                assert getattr(each, field.name) == getattr(single, field.name), field.name


def test_several_pods_are_ready_and_scheduled_together() -> None:
    assert unit(pod("a"), pod("b", index=1)).ready
    assert not unit(pod("a"), pod("b", State.LOADING, 1)).ready
    lacking = unit(pod("a"))
    assert (lacking.live, lacking.ready, lacking.scheduled, lacking.whole) == (True, False, False, False)
    assert not unit(pod("a"), pod("b", State.UNSCHEDULED, 1)).scheduled
    assert unit(pod("a"), pod("b", State.CUT_OFF, 1)).cut_off
    assert not unit(pod("a", State.LOADING), pod("b", State.CUT_OFF, 1)).cut_off
    assert not unit(pod("a", State.CUT_OFF)).cut_off


def test_a_unit_is_as_old_as_its_first_pod_and_moves_with_its_last() -> None:
    early, late = (EPOCH - timedelta(seconds=age) for age in (90, 30))
    one, other = observed(pod("a"), pod("b", index=1))
    one = replace(one, created=early, moved=late, ended=late, gone_by=late, loads_since=None, lost=True, worth=1.0)
    other = replace(other, created=late, moved=early, ended=early, gone_by=early, loads_since=early, worth=2.0)
    (found,) = units_of([other, one])
    assert (found.created, found.moved, found.ended, found.gone_by) == (early, late, late, late)
    assert (found.loads_since, found.lost, found.worth, found.name) == (early, False, 3.0, "a")


def test_a_unit_with_a_failing_pod_does_not_load() -> None:
    """So it is stalled after the progress deadline, and not when the other pods have used up their time to start."""
    one, other = observed(pod("a"), pod("b", index=1))
    (found,) = units_of(
        [replace(one, failure=Failure(Reason.INVALID_OPTIONS, "no")), replace(other, loads_since=EPOCH)]
    )
    assert found.loads_since is None


def test_a_unit_leaves_and_fails_with_one_of_its_pods() -> None:
    there = pod("b", State.UNSCHEDULABLE, 1)
    there.node = "n2"
    found = unit(pod("a", State.CRASHING), there)
    assert (found.leaving, found.node) == (True, "n1")
    assert found.failure is not None
    assert found.failure.reason is Reason.MODEL_INVALID
    seen = view(grouped(2), fits_of("new"), World([pod("a", State.LOADING), there]).observed())
    failure = seen.failure(frozenset({Reason.UNSCHEDULABLE}))
    assert failure is not None
    assert failure.message == "b: 0/2 nodes"


def test_pods_without_their_leader_are_no_replica_and_go() -> None:
    world = World([pod("a", State.DEAD), pod("b", index=1)], ServiceState.OURS)
    gone, dead = sorted(units_of(world.observed().pods), key=lambda each: each.dead)
    assert (gone.leaderless, gone.live, dead.leaderless) == (True, False, False)
    planned = plan(view(grouped(2), fits_of("new"), world.observed()))
    assert planned.actions == (
        DeletePod("b", "uid-b", "the leader of its group is gone"),
        CreatePod("a has ended for good", "1"),
    )


def test_a_pod_that_a_unit_lacks_is_created_with_the_address_of_its_leader() -> None:
    lacking = CreatePod("its group has 1 of 2 pods", "0", 1, "10-a")
    drains = pod("b", index=1)
    drains.gone_by = EPOCH + timedelta(seconds=30)
    for others in ((), (drains,), (pod("b", State.DEAD, 1),)):
        world = World([pod("a", State.LOADING), *others], ServiceState.OURS)
        assert plan(view(grouped(2), fits_of("new"), world.observed())).actions == (lacking,)
    world = World([pod("a", State.UNSCHEDULED)], ServiceState.OURS)
    assert plan(view(grouped(2), fits_of("new"), world.observed())).actions == ()


def test_a_pod_that_was_created_for_another_address_of_its_leader_goes() -> None:
    stray = replace(pod("b", index=1), leader="10-before")
    world = World([pod("a"), stray, replace(pod("c", index=2), leader="10-a")], ServiceState.OURS)
    for each in world.pods:
        each.size = 3
    planned = plan(view(grouped(3), fits_of("new"), world.observed()))
    assert planned.actions == (DeletePod("b", "uid-b", "its leader has another address than 10-before"),)


def test_a_pod_that_ends_again_and_again_is_created_ever_more_slowly() -> None:
    world = World([pod("a"), *(pod(name, State.DEAD, 1) for name in "bc")], ServiceState.OURS)
    assert plan(view(grouped(2), fits_of("new"), world.observed())) == Plan((), FIRST_WAIT)


def test_a_unit_of_another_image_that_lacks_a_pod_is_replaced_without_a_turn_to_roll() -> None:
    world = World([replace(pod("a"), hash="new@other")], ServiceState.OURS)
    planned = plan(view(grouped(2), fits_of("new"), world.observed(), may_roll=False))
    assert planned.actions == (
        DeletePod("a", "uid-a", "its spec or image has changed"),
        CreatePod("the spec or the image has changed", "1"),
    )
    whole = World([replace(pod(name, index=i), hash="new@other") for i, name in enumerate("ab")], ServiceState.OURS)
    assert plan(view(grouped(2), fits_of("new"), whole.observed(), may_roll=False)) == Plan(())


def assert_whole(pods: Sequence[Pod], actions: Sequence[Action]) -> None:
    """Check that the actions delete whole units, and that they create leaders of new ones or what a unit lacks."""
    gone = {action.uid for action in actions if isinstance(action, DeletePod)}
    for each in units_of(pods):
        assert len(gone & {p.uid for p in each.pods}) in (0, len(each.pods))
    made = [(action.group, action.index) for action in actions if isinstance(action, CreatePod)]
    live = [(p.group, p.index) for each in units_of(pods) if each.live for p in each.pods]
    assert len(made) == len({*made} - {*live})
    for group, index in made:
        assert ((group, 0) in live) == (index > 0)


def sides(spec: Spec) -> Sides:
    return Sides(spec, spec, fits_of(CANARY), fits_of(STABLE))


surging = st.builds(Rollout, max_surge=st.sampled_from([1, 0, 2]), max_unavailable=st.sampled_from([None, 1]))


@settings(deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, 3), surging)
def test_whatever_exists_and_wherever_it_is_killed_whole_units_of_the_spec_remain(
    data: st.DataObject, size: int, replicas: int, rollout: Rollout
) -> None:
    world = World(data.draw(worlds(size)), ServiceState.OURS, size=size)
    spec = replace(grouped(size, replicas=replicas), rollout=rollout)
    cuts = data.draw(st.lists(st.integers(0, 5), max_size=6))
    for _ in range(ROUNDS):
        seen = view(spec, fits_of("new"), world.observed())
        planned = plan(seen)
        assert_whole(world.observed().pods, planned.actions)
        if planned == Plan(()) and all(each.ready for each in world.ours()):
            break
        cut = cuts.pop() if cuts else None
        world.apply(planned.actions[:cut], "new")
        for each in world.ours() if cut is None else ():
            world.proceed(each)
        world.now += planned.wait or timedelta(seconds=1)
    assert (len(seen.live), len(seen.current), seen.ready) == (replicas, replicas, replicas)
    assert all([p.index for p in each.pods] == list(range(size)) for each in seen.live)
    assert len(world.ours()) == replicas * size
    assert len({each.group for each in seen.live}) == replicas


@settings(deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3))
def test_a_canary_is_whole_units_too(data: st.DataObject, size: int, replicas: int, step: int) -> None:
    world = World(data.draw(worlds(size, hashes=(STABLE, CANARY, "c-i-1"))), ServiceState.OURS, size=size)
    spec = grouped(size, replicas=replicas)
    for _ in range(ROUNDS):
        split = split_of(replace(BEGUN, step=step), TERMS, sides(spec), world.observed())
        planned = plan_split(split)
        assert_whole(world.observed().pods, planned.actions)
        if not planned.actions and all(each.ready for each in world.ours()):
            break
        for (_, actions), pod_hash in zip(planned.parts, (CANARY, STABLE, CANARY), strict=True):
            world.apply(actions, pod_hash)
        for each in world.ours():
            world.proceed(each)
        world.now += planned.wait or timedelta(seconds=1)
    assert split.ready == split.wanted
    count = max(min(1, replicas), replicas - split.wanted)
    assert Counter(each.hash for each in split.merged().live) == +Counter({STABLE: count, CANARY: split.wanted})
    assert len(world.ours()) == (count + split.wanted) * size


def test_both_revisions_of_a_canary_get_groups_of_their_own() -> None:
    planned = plan_split(
        split_of(BEGUN, TERMS, sides(grouped(2, replicas=2)), World(service=ServiceState.OURS).observed())
    )
    made = [[(a.group, a.index) for a in actions if isinstance(a, CreatePod)] for _, actions in planned.parts]
    assert made == [[], [("0", 0), ("1", 0)], [("2", 0)]]


def test_all_pods_of_a_canary_that_was_rolled_back_go() -> None:
    pods = [replace(pod(name, index=index), hash=STABLE) for index, name in enumerate("ab")]
    pods += [replace(pod(name, index=index, group="1"), hash=CANARY) for index, name in enumerate("cd")]
    canary = taken_back(BEGUN, "it fails", EPOCH)
    split = split_of(canary, TERMS, sides(grouped(2)), World(pods, ServiceState.OURS).observed())
    assert [action.name for action in plan_split(split).actions if isinstance(action, DeletePod)] == ["c", "d"]


def test_the_pods_of_a_replica_differ_in_their_index() -> None:
    pods = [build_pod(grouped(2), Image("runtime:1"), "x", "3", index) for index in range(2)]
    labels = [body["metadata"]["labels"] for body in pods]
    assert [(each[GROUP_LABEL], each[INDEX_LABEL], each[SIZE_LABEL]) for each in labels] == [
        ("3", "0", "2"),
        ("3", "1", "2"),
    ]


@pytest.mark.parametrize(("replicas", "least"), [(1, 2), (3, 5)])
def test_a_budget_counts_pods(replicas: int, least: int) -> None:
    budget = build_budget(grouped(2, replicas=replicas))
    assert budget is not None
    assert budget["spec"]["minAvailable"] == least


@pytest.mark.parametrize("label", ["", "x", "-1"])
def test_labels_that_someone_has_changed_do_no_harm(label: str) -> None:
    body = pod("a").json()
    body["metadata"]["labels"] |= {INDEX_LABEL: label, SIZE_LABEL: label}
    found = read_pod(body)
    assert (found.index, found.size) == (0, 1)
