"""The status of an object; planning/test_plan_machine.py checks it against the schema in all other states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from operator_support.objects import EPOCH, UID, model, spec_of, stamp
from operator_support.world import SimulatedPod, State, World, fits_of

from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.planning.pod_view import view
from plimsoll_operator.planning.pods import ServiceState
from plimsoll_operator.planning.units import units_of
from plimsoll_operator.spec.identity import selector
from plimsoll_operator.spec.model_deployment import read_spec
from plimsoll_operator.spec.rollout import PROGRESS_SECONDS
from plimsoll_operator.spec.template import STARTUP_SECONDS
from plimsoll_operator.status.conditions import (
    LOADED,
    PLACED,
    PROGRESSING,
    READY,
    RECONCILING,
    REPLICAS_IGNORED,
    ROUTABLE,
    STALLED,
    Condition,
    news,
)
from plimsoll_operator.status.name_conflicts import NameConflict
from plimsoll_operator.status.pod_failure import Failure
from plimsoll_operator.status.reasons import Reason
from plimsoll_operator.status.status import Rejections, describe, describe_invalid, replicas_ignored

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


def pod(name: str, state: State = State.READY, pod_hash: str = "new", **more: Any) -> SimulatedPod:
    return SimulatedPod(name, pod_hash, state, EPOCH, **more)


def told(
    replicas: int,
    *pods: SimulatedPod,
    service: ServiceState = ServiceState.OURS,
    rejections: Rejections = Rejections(),  # noqa: B008
    lost: tuple[NameConflict, ...] = (),
    before: Sequence[Mapping[str, Any]] = (),
    age: timedelta = timedelta(0),
    nodes: Mapping[str, Node] | None = None,
    may_roll: bool = True,
) -> tuple[dict[str, Any], dict[str, Condition]]:
    """Return the fields, and the conditions by type."""
    observed = replace(World(list(pods), service, EPOCH + age, dict(nodes or {})).observed(), lost_names=lost)
    fields, conditions = describe(
        view(spec_of(replicas=replicas), fits_of("new"), observed, may_roll=may_roll), rejections, before
    )
    return fields, {c.type: c for c in conditions}


def condition(kind: str, status: str, since: datetime, reason: Reason = Reason.SETTLED) -> dict[str, Any]:
    """Return a condition of the last status."""
    told = {"type": kind, "status": status, "reason": reason.value, "message": "", "observedGeneration": 1}
    return {**told, "lastTransitionTime": stamp(since)}


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
        "desiredReplicas": 2,
        "source": spec_of().source,
        "phase": "Ready",
        "servedNames": ["gemma"],
        "names": "gemma",
    }
    assert {kind: (c.status, c.reason) for kind, c in conditions.items()} == {
        READY: (True, Reason.READY),
        PROGRESSING: (False, Reason.SETTLED),
        PLACED: (True, Reason.SCHEDULED),
        LOADED: (True, Reason.LOADED),
        ROUTABLE: (True, Reason.ROUTABLE),
    }
    assert conditions[READY].message == "2 ready for requests to gemma"


def test_a_model_that_went_to_zero_before_it_loaded_is_not_ready() -> None:
    spec = read_spec(model() | {"spec": model()["spec"] | {"scaling": {"minReplicas": 0, "maxReplicas": 2}}}).scaled(0)
    gave_up = Failure(Reason.MODEL_SOURCE_NOT_FOUND, "gemma-x1: no such model (7 restarts)")
    for kept, phase, ready in ((None, "Idle", (True, Reason.IDLE)), (gave_up, "Failed", (False, gave_up.reason))):
        observed = replace(World([], ServiceState.OURS, EPOCH, {}).observed(), gave_up=kept)
        fields, conditions = describe(view(spec, fits_of("new"), observed), Rejections())
        of = {c.type: c for c in conditions}
        assert (fields["phase"], (of[READY].status, of[READY].reason)) == (phase, ready)
        assert (of[PROGRESSING].status, of[PROGRESSING].reason) == (False, Reason.SETTLED)
        assert STALLED not in of, "gateways hold requests for it, and those have it tried again"
    assert of[READY].message == of[LOADED].message
    assert of[LOADED].message.startswith("gemma-x1: no such model (7 restarts); scaled to zero before it loaded: ")
    told = {"revision": "r", "reason": "ModelSourceNotFound", "message": gave_up.message}
    before = {"status": {"desiredReplicas": 0, "scaling": {"failure": told}}}
    item = model() | before
    item["spec"] = item["spec"] | {"scaling": {"minReplicas": 0, "maxReplicas": 2}}
    invalid = describe_invalid(item, (), "too little memory")[1][0]
    assert (invalid.status, invalid.reason) == (False, Reason.INVALID_SPEC)


def test_the_selector_of_the_scale_has_the_uid() -> None:
    fields, _ = told(2, pod("a"), pod("b"))
    assert fields["selector"] == selector("gemma", UID)
    assert describe_invalid(model(), (), "")[0]["selector"] == selector("gemma", UID)


@pytest.mark.parametrize(
    ("replicas", "pods", "phase", "ready", "progressing"),
    [
        (1, [], "Pending", Reason.WAITING_FOR_PODS, Reason.SCALING),
        (1, [pod("a", State.UNSCHEDULED)], "Pending", Reason.WAITING_FOR_PODS, Reason.SCALING),
        (1, [pod("a", State.UNSCHEDULABLE)], "Pending", Reason.UNSCHEDULABLE, Reason.SCALING),
        (2, [pod("a"), pod("b", State.UNSCHEDULABLE)], "Degraded", Reason.READY, Reason.SCALING),
        (1, [pod("a", State.LOADING)], "Loading", Reason.LOADING, Reason.SCALING),
        (1, [pod("a", State.CRASHING)], "Failed", Reason.MODEL_INVALID, Reason.FAILING),
        (2, [pod("a"), pod("b", State.CRASHING)], "Degraded", Reason.READY, Reason.FAILING),
        (1, [pod("a", pod_hash="old")], "Updating", Reason.READY, Reason.ROLLING),
        (1, [pod("a", pod_hash="old"), pod("b", State.LOADING)], "Updating", Reason.READY, Reason.ROLLING),
        (1, [pod("a", pod_hash="old"), pod("b", State.CRASHING)], "Degraded", Reason.READY, Reason.FAILING),
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
        (ready in (Reason.READY, Reason.STOPPED), ready),
        (progressing is not Reason.SETTLED, progressing),
    )
    assert (RECONCILING in conditions, STALLED in conditions) == (progressing is not Reason.SETTLED, False)
    if replicas == 0:
        assert conditions[ROUTABLE][0] is False


def test_what_does_not_move_for_too_long_is_stalled() -> None:
    seconds = timedelta(seconds=PROGRESS_SECONDS)
    stuck = [pod("a", pod_hash="old"), pod("b", State.UNSCHEDULABLE)]
    before = [condition(PROGRESSING, "True", EPOCH)]
    for age, late in ((seconds - SECOND, False), (seconds, True)):
        fields, found = told(1, *stuck, before=before, age=age)
        assert found[READY].status
        assert found[PROGRESSING].status is not late
        assert (RECONCILING in found, STALLED in found) == (not late, late)
    assert fields["phase"] == "Degraded"
    assert found[STALLED].reason is found[PROGRESSING].reason is Reason.PROGRESS_DEADLINE_EXCEEDED
    assert found[STALLED].message == "no progress for 600 s: b: 0/2 nodes"
    stalled = [condition(PROGRESSING, "False", EPOCH + seconds, Reason.PROGRESS_DEADLINE_EXCEEDED)]
    assert STALLED in told(1, *stuck, before=stalled, age=2 * seconds)[1], "looking at it again is no progress"
    moved = pod("b", State.LOADING)
    moved.created += seconds
    assert RECONCILING in told(1, stuck[0], moved, before=stalled, age=2 * seconds)[1]
    assert RECONCILING in told(1, before=[condition(PROGRESSING, "False", EPOCH)], age=9 * seconds)[1]


def test_a_pod_that_loads_is_progress_until_its_own_limit() -> None:
    before = [condition(PROGRESSING, "True", EPOCH)]
    limit = timedelta(seconds=STARTUP_SECONDS)
    assert RECONCILING in told(1, pod("a", State.LOADING), before=before, age=limit - SECOND)[1]
    assert STALLED in told(1, pod("a", State.LOADING), before=before, age=limit)[1]
    assert STALLED in told(1, pod("a", State.CRASHING), before=before, age=timedelta(seconds=PROGRESS_SECONDS))[1]


@pytest.mark.parametrize(("replicas", "ready", "enough"), [(1, 0, False), (2, 1, True), (3, 1, False), (3, 2, True)])
def test_a_scale_up_leaves_it_ready_as_long_as_few_are_missing(replicas: int, ready: int, enough: bool) -> None:
    pods = [pod(f"p{n}", State.READY if n < ready else State.LOADING) for n in range(replicas)]
    assert told(replicas, *pods)[1][READY].status is enough


def test_a_model_that_waits_for_its_turn_is_ready_and_never_late() -> None:
    before = [condition(PROGRESSING, "True", EPOCH)]
    fields, found = told(
        2, pod("a", pod_hash="new@x"), pod("b", pod_hash="new@x"), may_roll=False, before=before, age=DAY
    )
    assert (fields["phase"], fields["updatedReplicas"], fields["readyReplicas"]) == ("Ready", 0, 2)
    assert {kind: (c.status, c.reason) for kind, c in found.items() if kind in (READY, PROGRESSING, RECONCILING)} == {
        READY: (True, Reason.READY),
        PROGRESSING: (True, Reason.ROLLOUT_QUEUED),
        RECONCILING: (True, Reason.ROLLOUT_QUEUED),
    }


def test_a_model_that_leaves_a_node_says_which() -> None:
    _, found = told(1, pod("a"), nodes={"n1": Node(cordoned=True, lost=False)})
    assert (found[READY].status, found[PROGRESSING].reason) == (True, Reason.MOVING)
    assert found[PROGRESSING].message == "1 replica leaves a node that is being drained: n1"


def test_a_lost_node_is_named() -> None:
    nodes = {"n1": Node(cordoned=False, lost=True)}
    for state, seen in ((State.CUT_OFF, {}), (State.LOADING, nodes), (State.CUT_OFF, nodes)):
        _, conditions = told(2, pod("a"), pod("b", state), nodes=seen)
        assert (conditions[PLACED].status, conditions[PLACED].reason) == (False, Reason.NODE_LOST)
        assert conditions[PLACED].message == "b: node n1 does not answer"
        assert conditions[READY].status, "the other one serves"
    assert told(1, pod("a", State.LOADING))[1][PLACED].status


def test_the_words_of_a_failure_name_the_pod() -> None:
    _, conditions = told(1, pod("gemma-x1", State.CRASHING))
    assert conditions[LOADED].message == "gemma-x1: model-invalid: no such tensor (3 restarts)"
    assert conditions[READY].message == conditions[LOADED].message
    assert conditions[PROGRESSING].message == f"waiting for a fix: {conditions[LOADED].message}"


def test_names_that_others_have_are_not_served() -> None:
    fields, conditions = told(1, pod("a"), lost=(NameConflict("gemma", Reason.SERVED_NAME_TAKEN, "by team/older"),))
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
        (True, Reason.FAILING),
    )
    phase, conditions = verdict(1, pod("a"), rejections=Rejections(service="no more addresses"))
    assert (phase, conditions[READY]) == ("Degraded", (False, Reason.REJECTED))


@pytest.mark.parametrize(("pods", "phase"), [([], "Failed"), ([pod("a"), pod("b", State.LOADING)], "Degraded")])
def test_a_spec_that_cannot_be_read_leaves_what_runs(pods: list[SimulatedPod], phase: str) -> None:
    found, serves = units_of(World(list(pods)).observed().pods), bool(pods)
    item = model(generation=7, replicas=max(1, len(pods))) | {"status": {"servedNames": ["g"], "names": "g"}}
    fields, conditions = describe_invalid(item, found, "too little memory")
    assert (fields["phase"], fields["replicas"], fields["readyReplicas"]) == (phase, len(pods), bool(pods))
    assert (fields["observedGeneration"], fields["updatedReplicas"]) == (7, 0)
    assert (fields["servedNames"], fields["names"]) == (["g"], "g")
    assert [(c.type, c.word) for c in conditions] == [
        (READY, str(serves)),
        (PROGRESSING, "False"),
        (PLACED, "Unknown"),
        (LOADED, "Unknown"),
        (ROUTABLE, "Unknown"),
        (STALLED, "True"),
    ]
    assert {c.reason for c in conditions} - {Reason.INVALID_SPEC} == ({Reason.READY} if serves else set())
    assert conditions[-1].message == "too little memory"
    assert "servedNames" not in describe_invalid(model(), found, "")[0]
    stopped = describe_invalid(model(replicas=0), (), "too little memory")[1][0]
    assert (stopped.status, stopped.reason) == (True, Reason.STOPPED)


@pytest.mark.parametrize(("replicas", "ignored"), [(0, False), (1, False), (2, True), (256, True)])
def test_replicas_that_have_no_effect_are_a_condition_while_it_is_so(replicas: int, ignored: bool) -> None:
    """0 stops a scaled model, and 1 is the default."""
    item = model(replicas=replicas, scaling={"maxReplicas": 3})
    assert [c.word for c in replicas_ignored(item)] == ["True"] * ignored
    assert replicas_ignored(model(replicas=replicas)) == []
    assert [c.type for c in describe_invalid(item, (), "no")[1]].count(REPLICAS_IGNORED) == ignored
    assert not news(replicas_ignored(item), ()), "an autoscaler that writes every few seconds causes no events"
