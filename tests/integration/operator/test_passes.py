"""Reconciles against a real API server: what they create and report, and that they come to rest."""

from __future__ import annotations

from typing import Any

import pytest
from operator_support.direct import Direct, Refused
from operator_support.objects import FULL, Json
from operator_support.recording import IMAGE, Operator, RecordingClient

from plimsoll_operator.build.disruption_budget import Budgets, build_budget
from plimsoll_operator.build.image import Image
from plimsoll_operator.controller import dedicated_pods
from plimsoll_operator.kube.plan_executor import NotLeaderError
from plimsoll_operator.kube.result import LOOK_AGAIN
from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.planning.upgrade_queue import UpgradeQueue
from plimsoll_operator.spec.identity import HASH_LABEL, KIND, ObjectKey, selector_labels

SOURCE = {"model": {"source": "demo://gemma-3-270m"}}


def conditions(direct: Direct, name: str = "m") -> dict[str, tuple[str, str]]:
    found = direct.model(name)["status"]["conditions"]
    return {c["type"]: (c["status"], c["reason"]) for c in found}


def reasons(direct: Direct, name: str = "m") -> list[str]:
    return [reason for _, reason, _ in direct.events(name)]


@pytest.fixture
def key(direct: Direct) -> ObjectKey:
    return ObjectKey(direct.namespace, "m")


async def serve(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    """Alternate reconciles and kubelets until nothing changes."""
    for _ in range(12):
        await operator.until_quiet(key)
        direct.make_ready(key.name)
        before = len(operator.http.writes)
        await operator.until_quiet(key)
        if len(operator.http.writes) == before and conditions(direct, key.name)["Progressing"][1] == "Settled":
            return
    raise AssertionError(f"not settled: {direct.model(key.name)['status']}")


async def test_from_nothing_to_ready(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    created = direct.create_model("m", {**SOURCE, "replicas": 2})
    await operator.until_quiet(key)
    assert conditions(direct) == {
        "Ready": ("False", "WaitingForPods"),
        "Progressing": ("True", "Scaling"),
        "Reconciling": ("True", "Scaling"),
        "Placed": ("False", "WaitingForPods"),
        "Loaded": ("False", "Loading"),
        "Routable": ("False", "NoReadyReplica"),
    }
    pods = direct.pods("m")
    assert len(pods) == 2
    for child in (*pods, direct.service("m")):
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (created["metadata"]["uid"], True)
        (manager,) = {entry["manager"] for entry in child["metadata"]["managedFields"]}
        assert manager == "plimsoll-operator"
    for pod in pods:
        direct.bind(pod)
        direct.report(pod, {"running": {}})
    await operator.until_quiet(key)
    assert conditions(direct)["Placed"] == ("True", "Scheduled")
    assert direct.model("m")["status"]["phase"] == "Loading"
    direct.make_ready("m")
    await operator.until_quiet(key)
    status = direct.model("m")["status"]
    assert {kind: state for kind, (state, _) in conditions(direct).items()} == {
        "Ready": "True",
        "Progressing": "False",
        "Placed": "True",
        "Loaded": "True",
        "Routable": "True",
    }
    assert (status["replicas"], status["readyReplicas"], status["phase"]) == (2, 2, "Ready")
    assert reasons(direct) == [
        "PodCreated",
        "PodCreated",
        "Scheduled",
        "Ready",
        "Settled",
        "Loaded",
        "Routable",
    ]


@pytest.mark.parametrize("spec", [SOURCE, {k: v for k, v in FULL.items() if k != "template"}], ids=["least", "most"])
async def test_a_settled_object_is_neither_read_nor_written(
    operator: Operator, direct: Direct, key: ObjectKey, spec: Json
) -> None:
    direct.create_model("m", spec)
    await serve(operator, direct, key)
    operator.http.requests.clear()
    for _ in range(3):
        result = await operator.one_pass(key)
        assert result.again is None
    fresh = Operator(operator.http)
    await fresh.one_pass(key)
    assert operator.http.requests == []


async def test_a_crash_loop_is_told_once_and_healed(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    direct.create_model("m", SOURCE)
    await operator.until_quiet(key)
    (pod,) = direct.pods("m")
    direct.bind(pod)
    last = {"terminated": {"exitCode": 3, "reason": "Error", "message": "model-source: no such demo model"}}
    for restarts in (1, 2):
        direct.report(pod, {"waiting": {"reason": "CrashLoopBackOff"}}, restarts=restarts, last=last)
        await operator.until_quiet(key)
    found = {c["type"]: c for c in direct.model("m")["status"]["conditions"]}
    assert (found["Loaded"]["status"], found["Loaded"]["reason"]) == ("False", "ModelSourceNotFound")
    assert found["Loaded"]["message"] == f"{pod['metadata']['name']}: model-source: no such demo model (2 restarts)"
    assert found["Progressing"]["reason"] == "Failing"
    assert direct.model("m")["status"]["phase"] == "Failed"
    warnings = [(reason, note) for kind, reason, note in direct.events("m") if kind == "Warning"]
    assert [reason for reason, _ in warnings] == ["ModelSourceNotFound"]
    assert "no such demo model" in warnings[0][1]
    assert len(direct.pods("m")) == 1, "its kubelet starts it again, not we"
    direct.report(pod, {"running": {}}, ready=True, restarts=3, last=last)
    await operator.until_quiet(key)
    assert conditions(direct)["Ready"] == ("True", "Ready")
    assert reasons(direct)[-1] == "Routable"


async def test_times_change_with_the_status_only(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    direct.create_model("m", SOURCE)
    await serve(operator, direct, key)
    before = {c["type"]: c for c in direct.model("m")["status"]["conditions"]}
    direct.change_model("m", replicas=2)
    await operator.until_quiet(key)
    after = {c["type"]: c for c in direct.model("m")["status"]["conditions"]}
    assert {c["observedGeneration"] for c in after.values()} == {2}
    assert after["Routable"]["lastTransitionTime"] == before["Routable"]["lastTransitionTime"]
    assert (before["Placed"]["status"], after["Placed"]["status"]) == ("True", "False")


async def test_a_roll_never_goes_below_what_is_wanted(
    http: RecordingClient, operator: Operator, direct: Direct, key: ObjectKey
) -> None:
    direct.create_model("m", {**SOURCE, "replicas": 2})
    await serve(operator, direct, key)
    old = {pod["metadata"]["uid"] for pod in direct.pods("m")}
    newer = Operator(http, image=Image("registry.example/runtime:2"))
    for _ in range(20):
        before = http.changes
        await newer.one_pass(key)
        live = [pod for pod in direct.pods("m") if "deletionTimestamp" not in pod["metadata"]]
        ready = [p for p in live if {"type": "Ready", "status": "True"}.items() <= _ready(p).items()]
        assert len(ready) >= 2
        assert len(live) <= 3
        if not direct.make_ready("m") and http.changes == before:
            break
    assert old.isdisjoint({pod["metadata"]["uid"] for pod in direct.pods("m")})
    assert conditions(direct)["Progressing"] == ("False", "Settled")


def _ready(pod: Json) -> dict[str, Any]:
    return next((c for c in pod["status"].get("conditions", ()) if c["type"] == "Ready"), {})


async def test_a_changed_service_is_put_right_and_a_deleted_one_made_again(
    operator: Operator, direct: Direct, key: ObjectKey
) -> None:
    direct.create_model("m", SOURCE)
    await serve(operator, direct, key)
    wanted = direct.service("m")["spec"]["selector"]
    direct.change_service("m", selector={"app": "theirs", **dict.fromkeys(wanted)})
    await operator.until_quiet(key)
    assert direct.service("m")["spec"]["selector"] == wanted
    direct.delete_service("m")
    await operator.until_quiet(key)
    assert direct.service("m")["spec"]["selector"] == wanted


async def test_somebody_elses_service_is_left_alone(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    theirs = direct.create_service("m")
    direct.create_model("m", SOURCE)
    await operator.until_quiet(key)
    assert conditions(direct)["Routable"] == ("False", "ServiceNameTaken")
    assert direct.service("m") == theirs
    direct.delete_service("m")
    await operator.until_quiet(key)
    assert conditions(direct)["Routable"] == ("False", "NoReadyReplica")


async def test_of_two_that_claim_a_name_the_older_has_it(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    named = {"model": {**SOURCE["model"], "servedNames": ["gemma"]}}
    direct.create_model("m", named)
    direct.create_model("n", named)
    other = ObjectKey(direct.namespace, "n")
    for each in (other, key, other):
        await operator.until_quiet(each)
    assert conditions(direct, "n")["Routable"] == ("False", "ServedNameTaken")
    assert conditions(direct, "m")["Routable"] == ("False", "NoReadyReplica")
    assert direct.model("n")["status"]["servedNames"] == []
    direct.delete_model("m")
    operator.woken.clear()
    assert (await operator.one_pass(key)).gone
    assert operator.woken == [other]
    await operator.until_quiet(other)
    assert conditions(direct, "n")["Routable"] == ("False", "NoReadyReplica")


async def test_an_evicted_pod_is_replaced(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    direct.create_model("m", SOURCE)
    await serve(operator, direct, key)
    (pod,) = direct.pods("m")
    direct.write_status(pod, {"phase": "Failed", "reason": "Evicted", "message": "low on memory"})
    await operator.until_quiet(key)
    assert conditions(direct)["Placed"] in (("False", "WaitingForPods"), ("False", "Evicted"))
    await serve(operator, direct, key)
    (replacement,) = direct.pods("m")
    assert replacement["metadata"]["uid"] != pod["metadata"]["uid"]
    assert replacement["metadata"]["labels"][HASH_LABEL] == pod["metadata"]["labels"][HASH_LABEL]


async def test_an_invalid_change_leaves_what_serves(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    direct.create_model("m", SOURCE)
    await serve(operator, direct, key)
    direct.change_model("m", template={"image": "registry.example/theirs:1"})
    await operator.until_quiet(key)
    status = direct.model("m")["status"]
    assert conditions(direct)["Ready"] == ("True", "Ready")
    assert conditions(direct)["Stalled"] == ("True", "InvalidSpec")
    assert (status["phase"], status["readyReplicas"], status["servedNames"]) == ("Degraded", 1, ["m"])
    assert direct.events("m")[-1][:2] == ("Warning", "InvalidSpec")
    direct.change_model("m", template={"image": None})
    await serve(operator, direct, key)
    assert conditions(direct)["Ready"] == ("True", "Ready")
    assert "Stalled" not in conditions(direct)
    assert {kind for kind, reason, _ in direct.events("m") if reason in ("Settled", "Ready")} == {"Normal"}


async def test_a_condition_of_another_manager_is_left_alone(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    direct.create_model("m", SOURCE)
    await serve(operator, direct, key)
    direct.apply_condition("m", "example.com/Checked", manager="checker")
    operator.http.requests.clear()
    for _ in range(3):
        await operator.one_pass(key)
    assert operator.http.writes == []
    direct.change_model("m", replicas=2)
    await serve(operator, direct, key)
    assert conditions(direct)["example.com/Checked"] == ("True", "Checked")


@pytest.mark.parametrize(
    "rollout", [{"maxSurge": 0, "maxUnavailable": 0}, {"maxSurge": "0%", "maxUnavailable": 0}, {"maxSurge": "25"}]
)
def test_a_rollout_that_could_never_go_on_is_refused(direct: Direct, rollout: Json) -> None:
    with pytest.raises(Refused, match="maxSurge"):
        direct.create_model("m", {**SOURCE, "rollout": rollout})


def test_a_rollout_as_of_a_deployment_is_taken(direct: Direct) -> None:
    wanted = {"maxSurge": "25%", "maxUnavailable": 0, "progressDeadlineSeconds": 60}
    assert direct.create_model("m", {**SOURCE, "rollout": wanted})["spec"]["rollout"] == wanted


async def test_an_upgrade_of_the_image_rolls_one_model_after_the_other(http: RecordingClient, direct: Direct) -> None:
    first = Operator(http)
    keys = [ObjectKey(direct.namespace, name) for name in ("m", "n")]
    for key in keys:
        direct.create_model(key.name, SOURCE)
        await serve(first, direct, key)
    newer = Operator(http, image=Image("registry.example/runtime:2"), upgrades=UpgradeQueue(1))
    for key in keys:
        await newer.until_quiet(key)
    assert [len(direct.pods(key.name)) for key in keys] == [2, 1]
    assert conditions(direct, "n")["Progressing"] == ("True", "RolloutQueued")
    assert conditions(direct, "n")["Ready"] == ("True", "Ready")
    await serve(newer, direct, keys[0])
    assert newer.woken == [keys[1]]
    await serve(newer, direct, keys[1])
    images = {pod["spec"]["containers"][0]["image"] for key in keys for pod in direct.pods(key.name)}
    assert images == {"registry.example/runtime:2"}


async def test_a_pod_is_moved_before_its_node_is_drained(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    direct.create_model("m", SOURCE)
    await serve(operator, direct, key)
    (pod,) = direct.pods("m")
    drained = Node(cordoned=True, lost=False)
    assert operator.nodes.note(pod["spec"]["nodeName"], drained) == {key.of(KIND)}, (
        "objects with pods there are reconciled"
    )
    await operator.until_quiet(key)
    assert conditions(direct)["Progressing"] == ("True", "Moving")
    moved, new = sorted(direct.pods("m"), key=lambda found: found["metadata"]["uid"] != pod["metadata"]["uid"])
    assert "deletionTimestamp" not in moved["metadata"], "it serves until the other one does"
    direct.bind(new, "node-2")
    direct.report(new, {"running": {}}, ready=True)
    await operator.until_quiet(key)
    direct.make_ready("m")
    await operator.until_quiet(key)
    assert [found["metadata"]["uid"] for found in direct.pods("m")] == [new["metadata"]["uid"]]
    assert conditions(direct)["Progressing"] == ("False", "Settled")


async def test_who_lost_the_lease_writes_no_status(http: RecordingClient, direct: Direct, key: ObjectKey) -> None:
    direct.create_model("m", SOURCE)
    await serve(Operator(http), direct, key)
    (pod,) = direct.pods("m")
    direct.report(pod, {"running": {}})
    http.requests.clear()
    with pytest.raises(NotLeaderError):
        await Operator(http, may_act=lambda: False).one_pass(key)
    assert http.writes == []


async def test_who_does_not_lead_writes_nothing(http: RecordingClient, direct: Direct, key: ObjectKey) -> None:
    direct.create_model("m", SOURCE)
    idle = Operator(http, image=IMAGE, may_act=lambda: False)
    with pytest.raises(NotLeaderError):
        await idle.one_pass(key)
    assert http.writes == []


async def test_a_pod_that_is_refused_is_asked_for_once_a_pass_and_told_once(
    operator: Operator, direct: Direct, key: ObjectKey
) -> None:
    direct.create_model("m", {**SOURCE, "replicas": 4, "template": {"priorityClassName": "no-such-class"}})
    await operator.until_quiet(key)
    found = {c["type"]: c for c in direct.model("m")["status"]["conditions"]}
    assert (found["Placed"]["status"], found["Placed"]["reason"]) == ("False", "Rejected")
    assert "no-such-class" in found["Placed"]["message"]
    assert found["Progressing"]["reason"] == "Failing"
    operator.http.requests.clear()
    for _ in range(3):
        await operator.one_pass(key)
    assert [url.partition("?")[0].rpartition("/")[2] for _, url in operator.http.writes] == ["pods"] * 3
    direct.change_model("m", template={"priorityClassName": None})
    await serve(operator, direct, key)
    assert conditions(direct)["Ready"] == ("True", "Ready")


async def test_in_a_namespace_that_is_being_deleted_nothing_more_is_made_or_told(
    operator: Operator, direct: Direct, key: ObjectKey
) -> None:
    direct.create_model("m", SOURCE)
    await serve(operator, direct, key)
    before = direct.model("m")["status"]
    direct.delete_namespace()
    (pod,) = direct.pods("m")
    direct.end(pod)
    operator.http.requests.clear()
    for _ in range(3):
        assert (await operator.one_pass(key)).again == LOOK_AGAIN
    assert [url.partition("?")[0].rpartition("/")[2] for _, url in operator.http.writes] == ["pods"] * 3
    assert direct.model("m")["status"] == before


async def test_a_drain_leaves_all_replicas_but_one(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    created = direct.create_model("m", {**SOURCE, "replicas": 3})
    await serve(operator, direct, key)
    made = direct.budget("m")
    uid = created["metadata"]["uid"]
    assert made["spec"] == {
        "minAvailable": 2,
        "selector": {"matchLabels": selector_labels("m", uid)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    assert made["metadata"]["ownerReferences"][0]["uid"] == uid
    direct.change_model("m", replicas=2)
    await serve(operator, direct, key)
    assert direct.budget("m")["spec"]["minAvailable"] == 1
    direct.change_model("m", replicas=0)
    await operator.until_quiet(key)
    with pytest.raises(Refused, match="404"):
        direct.budget("m")
    assert reasons(direct).count("BudgetApplied") == 1
    assert reasons(direct).count("BudgetDeleted") == 1


async def test_budgets_that_are_not_wanted_go_and_those_of_others_stay(
    http: RecordingClient, operator: Operator, direct: Direct, key: ObjectKey
) -> None:
    direct.create_model("m", {**SOURCE, "replicas": 2})
    await serve(operator, direct, key)
    without = Operator(http, budgets=Budgets(made=False))
    await without.until_quiet(key)
    with pytest.raises(Refused, match="404"):
        direct.budget("m")
    theirs = direct.create_budget("m")
    await serve(operator, direct, key)
    assert direct.budget("m")["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert "ownerReferences" not in direct.budget("m")["metadata"]


async def test_a_model_serves_without_a_budget_that_is_refused(
    operator: Operator,
    direct: Direct,
    key: ObjectKey,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(dedicated_pods, "build_budget", _impossible_budget)
    direct.create_model("m", {**SOURCE, "replicas": 2})
    for _ in range(4):
        await operator.one_pass(key)
        direct.make_ready("m")
    await operator.one_pass(key)
    assert conditions(direct)["Ready"] == ("True", "Ready")
    assert "the API server rejects its PodDisruptionBudget" in caplog.text


def _impossible_budget(*args: Any) -> Json | None:
    budget = build_budget(*args)
    assert budget is not None
    return budget | {"spec": budget["spec"] | {"minAvailable": -1}}
