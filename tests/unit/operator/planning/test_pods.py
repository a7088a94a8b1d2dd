"""Reading pods and Services, with any other fields."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
from operator_support.objects import EPOCH, UID, Json, model, spec_of, stamp
from operator_support.world import SimulatedPod, State

from plimsoll_operator.build.model import build_service
from plimsoll_operator.kube.stores import MODELS, Stores
from plimsoll_operator.planning.pods import (
    LOST_AFTER,
    Pod,
    ServiceState,
    lost_in,
    observe_pods,
    observe_service,
    read_pod,
    read_service,
)
from plimsoll_operator.spec.identity import KIND, OWNER_LABEL, UID_LABEL
from plimsoll_operator.status.reasons import Reason

NOW = EPOCH + timedelta(hours=1)


def seen(pod: SimulatedPod) -> Pod:
    (found,) = observe_pods([read_pod(pod.json())], NOW)
    return found


def pod(state: State = State.READY, name: str = "a", age: int = 60, **more: Any) -> SimulatedPod:
    return SimulatedPod(name, "h", state, NOW - timedelta(seconds=age), **more)


@pytest.mark.parametrize(
    ("state", "scheduled", "ready", "dead", "reason"),
    [
        (State.UNSCHEDULED, False, False, False, None),
        (State.UNSCHEDULABLE, False, False, False, Reason.UNSCHEDULABLE),
        (State.LOADING, True, False, False, None),
        (State.READY, True, True, False, None),
        (State.CRASHING, True, False, False, Reason.MODEL_INVALID),
        (State.DEAD, True, False, True, Reason.EVICTED),
        (State.DONE, True, False, True, None),
    ],
)
def test_what_a_pod_is_at(state: State, scheduled: bool, ready: bool, dead: bool, reason: Reason | None) -> None:
    found = seen(pod(state))
    assert (found.scheduled, found.ready, found.dead, found.stopping) == (scheduled, ready, dead, False)
    assert found.live is not dead
    assert (found.failure and found.failure.reason) == reason


def test_a_pod_that_drains_is_no_replica_though_it_says_ready() -> None:
    found = seen(pod(gone_by=NOW + timedelta(seconds=30)))
    assert (found.stopping, found.ready, found.live, found.lost) == (True, False, False, False)


def test_a_pass_comes_when_a_pod_that_stops_counts_as_lost() -> None:
    stays, goes = seen(pod()), seen(pod(gone_by=NOW + timedelta(seconds=30)))
    later, lost = seen(pod(gone_by=NOW + timedelta(seconds=90))), seen(pod(gone_by=NOW - 2 * LOST_AFTER))
    assert lost_in([stays], NOW) is None
    assert lost_in([stays, lost], NOW) is None
    assert lost_in([later, stays, goes, lost], NOW) == timedelta(seconds=30) + LOST_AFTER


def test_a_pod_that_should_be_long_gone_is_lost() -> None:
    assert not seen(pod(gone_by=NOW - LOST_AFTER)).lost
    assert seen(pod(gone_by=NOW - LOST_AFTER - timedelta(seconds=1))).lost


def test_oldest_first() -> None:
    pods = [pod(name="b"), pod(name="a"), pod(name="c", age=90)]
    assert [p.name for p in observe_pods([read_pod(p.json()) for p in pods], NOW)] == ["c", "a", "b"]


def test_whether_one_is_lost_is_a_question_of_time() -> None:
    kept = read_pod(pod(gone_by=NOW).json())
    assert not observe_pods([kept], NOW)[0].lost
    assert observe_pods([kept], NOW + 2 * LOST_AFTER)[0].lost


def test_only_our_own() -> None:
    """By owner uid, namespace and label: the Service selects by label."""
    stores, label = Stores(None), {OWNER_LABEL: "gemma", UID_LABEL: UID}
    owner = {"kind": KIND, "name": "gemma", "uid": UID, "controller": True}
    odd: dict[str, Json] = {
        "ours": {},
        "of another": {"ownerReferences": [{**owner, "uid": "u2"}]},
        "nobody's": {"ownerReferences": []},
        "not controlled": {"ownerReferences": [{**owner, "controller": False}]},
        "of another namespace": {"namespace": "other"},
        "renamed": {"labels": {**label, OWNER_LABEL: "other"}},
        "without the uid": {"labels": {OWNER_LABEL: "gemma"}},
        "unlabelled": {"labels": {}},
    }
    for number, (name, fields) in enumerate(odd.items()):
        item = pod(name=name).json()
        item["metadata"] |= {"resourceVersion": str(number + 1), "labels": label, "ownerReferences": [owner], **fields}
        stores.pods.parts[None].take({"type": "ADDED", "object": item})
    found = stores.pods_of(MODELS.entry({**model(), "metadata": model()["metadata"] | {"resourceVersion": "1"}}))
    assert [one.name for one in found] == ["ours"]


def test_of_a_model_all_is_kept_but_what_tools_write_into_it() -> None:
    """`kubectl apply` repeats the whole object in an annotation."""
    item = model()
    written = item["metadata"] | {"annotations": {"last-applied": "{}"}, "managedFields": [{}], "resourceVersion": "1"}
    assert MODELS.entry(item | {"metadata": written}).value == item


def test_a_pod_with_next_to_nothing() -> None:
    meta = {"name": "a", "uid": "u", "creationTimestamp": stamp(NOW)}
    meta |= {"ownerReferences": [{"uid": UID, "controller": True}]}  # type: ignore[dict-item]
    (found,) = observe_pods([read_pod({"metadata": meta, "spec": {}})], NOW)
    assert (found.hash, found.scheduled, found.ready, found.failure) == ("", False, False, None)


def test_when_it_ended_is_the_last_thing_known_of_it() -> None:
    dead = pod(State.DEAD, age=600, ended=NOW - timedelta(seconds=30))
    item = dead.json()
    assert seen(dead).ended == NOW - timedelta(seconds=30)
    finished = {"state": {"terminated": {"exitCode": 1, "finishedAt": stamp(NOW - timedelta(seconds=10))}}}
    item["status"]["containerStatuses"] = [{"name": "runtime", **finished}, {"name": "sidecar", "state": None}]
    (found,) = observe_pods([read_pod(item)], NOW)
    assert found.ended == NOW - timedelta(seconds=10)


WANTED = build_service(spec_of())


def changed(*path: str | int, value: Any) -> Json:
    item = copy.deepcopy(WANTED)
    at: Any = item
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return item


def filled() -> Json:
    """Return a Service as the API server does, with fields that were not set."""
    item = changed("spec", "ports", 0, "nodePort", value=30080)
    item["spec"] |= {"clusterIP": "198.19.0.7", "type": "ClusterIP", "sessionAffinity": "None"}
    item["metadata"]["labels"]["theirs"] = "too"
    return item


OWNER = WANTED["metadata"]["ownerReferences"][0]


@pytest.mark.parametrize(
    ("item", "state"),
    [
        (None, ServiceState.MISSING),
        (WANTED, ServiceState.OURS),
        (filled(), ServiceState.OURS),
        (changed("spec", "selector", value={"app": "x"}), ServiceState.CHANGED),
        (changed("spec", "selector", value=None), ServiceState.CHANGED),
        (changed("spec", "ports", value=[]), ServiceState.CHANGED),
        (changed("spec", "ports", 0, "targetPort", value=9), ServiceState.CHANGED),
        (changed("metadata", "labels", value={}), ServiceState.CHANGED),
        (changed("metadata", "labels", value=None), ServiceState.CHANGED),
        (changed("metadata", "ownerReferences", value=[]), ServiceState.FOREIGN),
        (changed("metadata", "ownerReferences", value=None), ServiceState.FOREIGN),
        (changed("metadata", "ownerReferences", value=[{**OWNER, "kind": "App", "uid": "u2"}]), ServiceState.FOREIGN),
        (changed("metadata", "ownerReferences", value=[{**OWNER, "name": "b", "uid": "u2"}]), ServiceState.FOREIGN),
        (changed("metadata", "ownerReferences", value=[{**OWNER, "uid": "u2"}]), ServiceState.LEFT_OVER),
    ],
)
def test_the_service(item: Json | None, state: ServiceState) -> None:
    assert OWNER["kind"] == KIND
    assert observe_service(None if item is None else read_service(item), WANTED) is state
