"""What an object says of itself; test_plan_machine.py holds it to the schema and to the truth in every other state."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_support.objects import EPOCH, UID, spec_of
from operator_support.world import SimulatedPod, State, World

from plimsoll_operator.conditions import LOADED, PLACED, PROGRESSING, READY, ROUTABLE, Condition
from plimsoll_operator.identity import selector
from plimsoll_operator.observe import ServiceState
from plimsoll_operator.reasons import Reason
from plimsoll_operator.status import Rejections, describe, describe_invalid, view


def pod(name: str, state: State = State.READY, pod_hash: str = "new", **more: Any) -> SimulatedPod:
    return SimulatedPod(name, pod_hash, state, EPOCH, **more)


def told(
    replicas: int,
    *pods: SimulatedPod,
    service: ServiceState = ServiceState.OURS,
    rejections: Rejections = Rejections(),  # noqa: B008
    holders: tuple[tuple[str, str], ...] = (),
) -> tuple[dict[str, Any], dict[str, Condition]]:
    """The fields and the conditions by type."""
    observed = replace(World(list(pods), service).observed(), name_holders=holders)
    fields, conditions = describe(view(spec_of(replicas=replicas), "new", observed), rejections)
    return fields, {c.type: c for c in conditions}


def verdict(replicas: int, *pods: SimulatedPod, **more: Any) -> tuple[str, dict[str, tuple[bool | None, Reason]]]:
    fields, conditions = told(replicas, *pods, **more)
    return fields["phase"], {kind: (c.status, c.reason) for kind, c in conditions.items()}


def test_all_is_well() -> None:
    fields, conditions = told(2, pod("a"), pod("b"))
    assert fields == {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "selector": "app.kubernetes.io/name=plimsoll-runtime,app.kubernetes.io/managed-by=plimsoll-operator,"
        f"plimsoll.dev/model-deployment=gemma,plimsoll.dev/model-deployment-uid={UID}",
        "phase": "Ready",
        "servedNames": ["gemma"],
    }
    assert {kind: (c.status, c.reason) for kind, c in conditions.items()} == {
        READY: (True, Reason.READY),
        PROGRESSING: (False, Reason.SETTLED),
        PLACED: (True, Reason.SCHEDULED),
        LOADED: (True, Reason.LOADED),
        ROUTABLE: (True, Reason.ROUTABLE),
    }
    assert conditions[READY].message == "2 ready for requests to gemma"


def test_a_replica_of_before_the_uid_label_still_counts_for_the_scale() -> None:
    fields, _ = told(2, pod("a"), pod("b", marked=False))
    assert fields["selector"] == selector("gemma")
    kept = {"selector": selector("gemma", UID)}
    assert describe_invalid(1, "gemma", (), kept, "")[0]["selector"] == kept["selector"]
    assert describe_invalid(1, "gemma", (), {}, "")[0]["selector"] == selector("gemma")


@pytest.mark.parametrize(
    ("replicas", "pods", "phase", "ready", "progressing"),
    [
        (1, [], "Pending", Reason.WAITING_FOR_PODS, Reason.SCALING),
        (1, [pod("a", State.UNSCHEDULED)], "Pending", Reason.WAITING_FOR_PODS, Reason.SCALING),
        (1, [pod("a", State.UNSCHEDULABLE)], "Pending", Reason.UNSCHEDULABLE, Reason.SCALING),
        (2, [pod("a"), pod("b", State.UNSCHEDULABLE)], "Degraded", Reason.UNSCHEDULABLE, Reason.SCALING),
        (1, [pod("a", State.LOADING)], "Loading", Reason.LOADING, Reason.SCALING),
        (1, [pod("a", State.CRASHING)], "Failed", Reason.MODEL_INVALID, Reason.FAILING),
        (2, [pod("a"), pod("b", State.CRASHING)], "Degraded", Reason.MODEL_INVALID, Reason.FAILING),
        (1, [pod("a", pod_hash="old")], "Updating", Reason.WAITING_FOR_PODS, Reason.ROLLING),
        (1, [pod("a", pod_hash="old"), pod("b", State.LOADING)], "Updating", Reason.LOADING, Reason.ROLLING),
        (1, [pod("a", pod_hash="old"), pod("b", State.CRASHING)], "Degraded", Reason.MODEL_INVALID, Reason.FAILING),
        (1, [pod("a", State.DEAD)], "Pending", Reason.EVICTED, Reason.SCALING),
        (1, [pod("a", State.DEAD), pod("b", State.LOADING)], "Loading", Reason.LOADING, Reason.SCALING),
        (1, [pod("a", State.DEAD, "old")], "Pending", Reason.WAITING_FOR_PODS, Reason.SCALING),
        (1, [pod("a"), pod("b")], "Ready", Reason.READY, Reason.SCALING),
        (1, [pod("a"), pod("b", gone_by=EPOCH + timedelta(1))], "Ready", Reason.READY, Reason.SCALING),
        (1, [pod("a"), pod("b", gone_by=EPOCH - timedelta(1))], "Ready", Reason.READY, Reason.SETTLED),
        (0, [], "Stopped", Reason.STOPPED, Reason.SETTLED),
        (0, [pod("a", gone_by=EPOCH + timedelta(1))], "Stopped", Reason.STOPPED, Reason.SCALING),
    ],
)
def test_what_it_is_at(replicas: int, pods: list[SimulatedPod], phase: str, ready: Reason, progressing: Reason) -> None:
    found, conditions = verdict(replicas, *pods)
    assert (found, conditions[READY], conditions[PROGRESSING]) == (
        phase,
        (ready is Reason.READY, ready),
        (progressing in (Reason.SCALING, Reason.ROLLING), progressing),
    )


def test_the_words_of_a_failure_name_the_pod() -> None:
    _, conditions = told(1, pod("gemma-x1", State.CRASHING))
    assert conditions[LOADED].message == "gemma-x1: no such tensor (3 restarts)"
    assert conditions[READY].message == conditions[LOADED].message
    assert conditions[PROGRESSING].message == f"waiting for a fix: {conditions[LOADED].message}"


def test_names_that_others_have_are_not_served() -> None:
    fields, conditions = told(1, pod("a"), holders=(("gemma", "team/older"),))
    assert fields["servedNames"] == []
    assert (conditions[ROUTABLE].status, conditions[ROUTABLE].reason) == (False, Reason.SERVED_NAME_TAKEN)
    assert "gemma by team/older" in conditions[READY].message


def test_a_service_of_somebody_else() -> None:
    _, conditions = told(1, pod("a"), service=ServiceState.FOREIGN)
    assert conditions[READY].reason is Reason.SERVICE_NAME_TAKEN
    assert "delete that Service" in conditions[READY].message


def test_what_the_api_server_refuses() -> None:
    phase, conditions = verdict(1, rejections=Rejections(pod="exceeded quota"))
    assert (phase, conditions[PLACED], conditions[PROGRESSING]) == (
        "Failed",
        (False, Reason.REJECTED),
        (False, Reason.FAILING),
    )
    phase, conditions = verdict(1, pod("a"), rejections=Rejections(service="no more addresses"))
    assert (phase, conditions[READY]) == ("Degraded", (False, Reason.REJECTED))


@pytest.mark.parametrize(("pods", "phase"), [([], "Failed"), ([pod("a"), pod("b", State.LOADING)], "Degraded")])
def test_a_spec_that_cannot_be_read_leaves_what_runs(pods: list[SimulatedPod], phase: str) -> None:
    found = World(list(pods)).observed().pods
    fields, conditions = describe_invalid(7, "gemma", found, {"servedNames": ["g"]}, "too little memory")
    assert (fields["phase"], fields["replicas"], fields["readyReplicas"]) == (phase, len(pods), bool(pods))
    assert (fields["observedGeneration"], fields["updatedReplicas"], fields["servedNames"]) == (7, 0, ["g"])
    assert [(c.type, c.word) for c in conditions] == [
        (READY, "False"),
        (PROGRESSING, "False"),
        (PLACED, "Unknown"),
        (LOADED, "Unknown"),
        (ROUTABLE, "Unknown"),
    ]
    assert {c.reason for c in conditions} == {Reason.INVALID_SPEC}
    assert conditions[0].message == "too little memory"
    assert "servedNames" not in describe_invalid(7, "gemma", found, {}, "")[0]
