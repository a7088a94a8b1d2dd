"""Which pods are deleted immediately, and which drain their models first."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from operator_support.objects import EPOCH
from operator_support.world import SimulatedPod, State

from plimsoll_operator.planning.actions import Action, CreatePod, DeletePod
from plimsoll_operator.planning.pods import Pod, observe_pods, read_pod
from plimsoll_operator.pools.drain import drain

PATIENCE = timedelta(seconds=600)


def pod(name: str, state: State = State.READY) -> Pod:
    (found,) = observe_pods([read_pod(SimulatedPod(name, "h", state, EPOCH).json())], EPOCH)
    return found


def delete(name: str) -> DeletePod:
    return DeletePod(name, f"uid-{name}", "2 are wanted in total")


def test_a_pod_with_models_is_kept_until_it_has_none() -> None:
    held = drain([delete("a")], [pod("a")], {"uid-a": 2}, {}, PATIENCE, EPOCH)
    assert (held.actions, held.draining, held.wait) == ((), frozenset({"uid-a"}), PATIENCE)
    free = drain([delete("a")], [pod("a")], {"uid-a": 0}, {"uid-a": EPOCH}, PATIENCE, EPOCH)
    assert (free.actions, free.draining, free.wait) == ((delete("a"),), frozenset(), None)


def test_patience_ends_and_counts_from_when_it_began() -> None:
    since, late = {"uid-a": EPOCH}, EPOCH + PATIENCE
    before = drain([delete("a")], [pod("a")], {"uid-a": 2}, since, PATIENCE, late - timedelta(seconds=1))
    assert (before.actions, before.wait) == ((), timedelta(seconds=1))
    after = drain([delete("a")], [pod("a")], {"uid-a": 2}, since, PATIENCE, late)
    assert after.actions == (delete("a"),)


def test_a_pod_that_does_not_serve_goes_with_whatever_it_has() -> None:
    assert drain([delete("a")], [pod("a", State.CRASHING)], {"uid-a": 2}, {}, PATIENCE, EPOCH).actions == (delete("a"),)


def test_no_pod_is_made_in_the_room_of_one_that_is_kept() -> None:
    actions: list[Action] = [delete("a"), delete("b"), CreatePod("new", "0"), CreatePod("new", "1")]
    held = drain(actions, [pod("a"), pod("b")], {"uid-a": 1}, {}, PATIENCE, EPOCH)
    assert held.actions == (delete("b"), CreatePod("new", "1"))


PODS = st.sampled_from("abcde")


@given(st.dictionaries(PODS, st.integers(0, 2)), st.sets(PODS), st.integers(0, 4))
def test_no_more_pods_are_there_than_the_plan_would_leave_and_those_that_drain(
    models: dict[str, int], gone: set[str], made: int
) -> None:
    pods = [pod(name) for name in sorted(models)]
    deletions = [delete(name) for name in sorted(gone & models.keys())]
    found = drain(
        [*deletions, *[CreatePod("new", str(number)) for number in range(made)]],
        pods,
        {f"uid-{name}": count for name, count in models.items()},
        {},
        PATIENCE,
        EPOCH,
    )
    kept = [action for action in found.actions if isinstance(action, DeletePod)]
    assert {a.uid for a in kept} | found.draining == {a.uid for a in deletions}
    assert not {a.uid for a in kept} & found.draining
    creates = sum(isinstance(action, CreatePod) for action in found.actions)
    assert creates == max(0, made - len(found.draining))
