"""Groups in the status: why they do not serve, in the words of their leaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operator_support.objects import EPOCH, spec_of
from operator_support.world import SimulatedPod, State, World, fits_of

from plimsoll_operator.planning.pod_view import PodView, view
from plimsoll_operator.planning.pods import ServiceState
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.status.groups import MESSAGE_LIMIT, Leader, group_events, groups_of, leaders_of
from plimsoll_operator.status.reasons import Reason
from plimsoll_operator.status.status import Rejections, describe

SAYS = {"uid-a0": "rank 3 was killed by signal 9; wait for member 1"}


def pod(name: str, state: State = State.LOADING, **more: Any) -> SimulatedPod:
    return SimulatedPod(name, "new", state, EPOCH, group=name[0], index=int(name[1]), size=2, **more)


def seen(*pods: SimulatedPod, size: int = 2) -> PodView[Spec]:
    parallel: dict[str, Any] = {"parallel": {"tensor": size, "pods": size}} if size > 1 else {}
    found = World(list(pods), ServiceState.OURS, EPOCH, {}).observed()
    return view(spec_of(**parallel), fits_of("new"), found)


def message(*pods: SimulatedPod, words: Mapping[str, str] = SAYS) -> str:
    (group,) = groups_of(seen(*pods), {}, words)
    return group.message


def test_a_group_has_the_words_of_its_leader() -> None:
    assert message(pod("a0"), pod("a1")) == "a0: rank 3 was killed by signal 9; wait for member 1"
    assert message(pod("a0"), pod("a1"), words={}) == "waits for a0, a1"
    assert message(pod("a0"), pod("a1"), words={"uid-a1": "no leader", "uid-b0": "another's"}) == "waits for a0, a1"


def test_a_missing_pod_comes_first_and_a_failure_of_a_pod_replaces_the_words() -> None:
    alone = message(pod("a0"))
    assert alone == "pod 1 of 2 not created yet; a0: rank 3 was killed by signal 9; wait for member 1"
    assert message(pod("a0"), words={}) == "pod 1 of 2 not created yet"
    assert message(pod("a0"), pod("a1", State.CRASHING)).startswith("a1: ")


def test_a_ready_group_has_no_message() -> None:
    (group,) = groups_of(seen(pod("a0", State.READY), pod("a1", State.READY)), {}, SAYS)
    assert group.fields() == {"group": "a", "pods": 2, "readyPods": 2, "nodes": ["n1"]}


def test_conditions_and_events_repeat_the_words() -> None:
    before = {"groups": [{"group": "a", "pods": 2, "readyPods": 2, "nodes": ["n1"]}]}
    found = seen(pod("a0"), pod("a1"))
    groups = groups_of(found, before, SAYS)
    fields, conditions = describe(found, Rejections(), (), groups)
    assert fields["groups"][0]["reason"] == Reason.GROUP_LOST
    loaded = next(c for c in conditions if c.type == "Loaded")
    assert loaded.message.endswith("; group a: a0: rank 3 was killed by signal 9; wait for member 1")
    ((reason, note, is_warning),) = group_events(groups, before)
    assert (reason, is_warning) == (Reason.GROUP_LOST, True)
    assert note.endswith(": a0: rank 3 was killed by signal 9; wait for member 1")


def test_messages_stay_short() -> None:
    assert len(message(pod("a0"), words={"uid-a0": "x" * 5000})) == MESSAGE_LIMIT


def test_leaders_of_groups_that_do_not_serve_are_asked_once_they_have_an_address() -> None:
    found = seen(
        *(pod("a0", State.READY), pod("a1", State.READY)),
        *(pod("b0", State.READY), pod("b1")),
        *(pod("c0"),),
        *(pod("d0", State.UNSCHEDULED), pod("d1", State.UNSCHEDULED)),
        *(pod("e1"),),
        *(pod("f0", gone_by=EPOCH), pod("f1", gone_by=EPOCH)),
    )
    assert leaders_of(found) == (Leader("uid-b0", "b0", "10-b0"), Leader("uid-c0", "c0", "10-c0"))


def test_a_model_without_groups_has_no_leaders() -> None:
    assert leaders_of(seen(SimulatedPod("a", "new", State.LOADING, EPOCH, group="0"), size=1)) == ()
