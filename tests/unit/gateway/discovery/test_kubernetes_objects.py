from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from gateway_support.tables import table_of as table_of_entries
from hypothesis import example, given
from hypothesis import strategies as st

from plimsoll_cluster.objectives import NO_OBJECTIVES, LatencyObjective, Objectives
from plimsoll_gateway.discovery.kubernetes_objects import HOSTS, MODELS, PASSING, PODS
from plimsoll_gateway.discovery.routing_table import RoutingTable

DEPLOYMENT: dict[str, Any] = {
    "metadata": {
        "namespace": "team",
        "name": "gemma",
        "uid": "u-1",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {"model": {"source": "demo://gemma-3-270m"}},
    "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Loading", "message": "0 of 1"}]},
}
POD: dict[str, Any] = {
    "metadata": {
        "namespace": "team",
        "name": "gemma-x1",
        "uid": "p-1",
        "resourceVersion": "1",
        "ownerReferences": [{"kind": "ModelDeployment", "name": "gemma", "uid": "u-1", "controller": True}],
    },
    "spec": {"containers": [{"name": "runtime", "args": ["serve", "/m", "--name", "gemma"]}]},
    "status": {"podIP": "198.18.0.7", "conditions": [{"type": "Ready", "status": "True"}]},
}


REVISION = "plimsoll.dev/revision"
OWNER = POD["metadata"]["ownerReferences"][0]


def table_of(
    deployments: list[dict[str, Any]], pods: list[dict[str, Any]], hosts: Sequence[dict[str, Any]] = ()
) -> RoutingTable:
    """Build a table from objects as the API server returns them."""
    return table_of_entries(map(MODELS.entry, deployments), map(PODS.entry, pods), map(HOSTS.entry, hosts))


def changed(item: dict[str, Any], *path: str, value: object) -> dict[str, Any]:
    made = copy.deepcopy(item)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


def test_a_canary_gets_the_share_that_the_status_says() -> None:
    labelled = [
        changed(
            changed(POD, "metadata", "uid", value=f"p-{revision}"), "metadata", "labels", value={REVISION: revision}
        )
        for revision in ("a", "b")
    ]
    shares = {replica.revision: replica.share for replica in table_of([DEPLOYMENT], labelled).models[0].replicas}
    assert shares == {"a": None, "b": None}
    rolling = changed(DEPLOYMENT, "status", "canary", value={"revision": "b", "weight": 25})
    shares = {replica.revision: replica.share for replica in table_of([rolling], labelled).models[0].replicas}
    assert shares == {"a": None, "b": 25}


def test_a_model_has_the_objectives_of_its_spec() -> None:
    assert table_of([DEPLOYMENT], []).models[0].objectives == NO_OBJECTIVES
    promised = changed(DEPLOYMENT, "spec", "objectives", value={"availability": "99.9%", "ttftMilliseconds": 800})
    objectives = table_of([promised], []).models[0].objectives
    assert objectives == Objectives(0.999, LatencyObjective(0.8, 0.95))


def test_a_model_and_its_pod() -> None:
    (model,) = table_of([DEPLOYMENT], [POD]).models
    assert (str(model.key), model.served_names, model.created) == ("team/gemma", ("gemma",), 1767225600.0)
    assert model.message == "Loading. Try again in some seconds."
    (replica,) = model.replicas
    assert (replica.id, replica.url, replica.ready, replica.names) == (
        "p-1",
        "http://198.18.0.7:8000",
        True,
        frozenset(["gemma"]),
    )


def test_served_names_replace_the_objects_own() -> None:
    item = changed(DEPLOYMENT, "spec", "model", value={"servedNames": ["a", "b"]})
    assert set(table_of([item], []).owners) == {"a", "b"}


def test_a_ready_model_has_no_message() -> None:
    conditions = [{"type": "Ready", "status": "True", "message": "all is well"}]
    item = changed(DEPLOYMENT, "status", "conditions", value=conditions)
    assert table_of([item], []).models[0].message == ""
    bare = {key: value for key, value in DEPLOYMENT.items() if key != "status"}
    assert table_of([bare], []).models[0].message == ""


@given(reason=st.sampled_from([*PASSING, "Crashed", "EngineDied", "NeverHeardOf"]), text=st.text(min_size=1))
@example("Crashed", "gemma-x1: INFO 9f3c of team-b POST /v1/files 200, file-0123 (1 restart)")
def test_clients_get_reason_and_advice_and_no_message(reason: str, text: str) -> None:
    """The message is for users who may read the object."""
    told = [
        table_of([changed(DEPLOYMENT, "status", "conditions", value=[condition])], []).models[0].message
        for condition in (
            {"type": "Ready", "status": "False", "reason": reason, "message": message} for message in (text, "")
        )
    ]
    assert told[0] == told[1]
    assert told[0].startswith(f"{reason}. ")
    advice = "Try again" if reason in PASSING else "kubectl describe modeldeployment gemma -n team"
    assert advice in told[0]


@pytest.mark.parametrize(
    ("spec", "conditions", "wakes"),
    [
        ({}, [], False),
        ({"scaling": {"maxReplicas": 3}}, [], True),
        ({"scaling": {"maxReplicas": 3}, "replicas": 1}, [], True),
        ({"scaling": {"maxReplicas": 3}, "replicas": 0}, [], False),
        ({"placement": {"pool": "p"}}, [], True),
        ({"placement": {"pool": "p"}, "replicas": 0}, [], False),
        ({"scaling": {"maxReplicas": 3}}, [{"type": "Stalled", "status": "True"}], False),
        ({"scaling": {"maxReplicas": 3}}, [{"type": "Stalled", "status": "False"}], True),
    ],
)
def test_who_may_be_waited_for(spec: dict[str, Any], conditions: list[dict[str, str]], wakes: bool) -> None:
    item = changed(DEPLOYMENT, "spec", value=DEPLOYMENT["spec"] | spec)
    (model,) = table_of([changed(item, "status", "conditions", value=conditions)], []).models
    assert model.wakes is wakes
    assert model.scales_to == (3 if "scaling" in spec and spec.get("replicas") != 0 else 0)


@pytest.mark.parametrize(
    ("spec", "says", "scales_to"),
    [
        ({"replicas": 0}, "true", 1),
        ({}, "true", 1),
        ({"replicas": 3}, "true", 3),
        ({"replicas": 0}, "false", 0),
        ({"replicas": 3}, "yes", 0),
        ({"replicas": 0, "scaling": {"maxReplicas": 3}}, "true", 0),
        ({"replicas": 0, "placement": {"pool": "p"}}, "true", 0),
    ],
)
def test_requests_are_held_for_a_model_that_somebody_else_scales(
    spec: dict[str, Any], says: str, scales_to: int
) -> None:
    item = changed(DEPLOYMENT, "spec", value=DEPLOYMENT["spec"] | spec)
    item = changed(item, "metadata", "annotations", value={"plimsoll.dev/hold-requests": says})
    (model,) = table_of([item], []).models
    assert (model.scales_to, model.wakes) == (scales_to, scales_to > 0)


def test_pods_that_take_no_requests() -> None:
    terminating = changed(POD, "metadata", "deletionTimestamp", value="2026-01-01T00:01:00Z")
    starting = changed(POD, "status", value={"conditions": []})
    pending = changed(POD, "status", value={})
    (model,) = table_of([DEPLOYMENT], [terminating, starting, pending]).models
    assert model.replicas == ()
    unready = changed(POD, "status", "conditions", value=[{"type": "Ready", "status": "False"}])
    (model,) = table_of([DEPLOYMENT], [unready]).models
    assert [replica.ready for replica in model.replicas] == [False]


def test_a_replica_has_the_revision_of_its_pod_and_in_a_pool_none() -> None:
    """A pool's revision describes its pods, not its models."""
    labels = {"plimsoll.dev/revision": "ab12-cd34-1"}
    (model,) = table_of([DEPLOYMENT], [changed(POD, "metadata", "labels", value=labels)]).models
    assert [replica.revision for replica in model.replicas] == ["ab12-cd34-1"]
    (model,) = table_of([DEPLOYMENT], [changed(POD, "metadata", "labels", value=None)]).models
    assert [replica.revision for replica in model.replicas] == [""]
    (model,) = table_of([DEPLOYMENT], [changed(SHARED, "metadata", "labels", value=labels)], [HOST]).models
    assert [replica.revision for replica in model.replicas] == [""]


def condition(kind: str, status: str, reason: str = "") -> dict[str, str]:
    return {"type": kind, "status": status} | ({"reason": reason} if reason else {})


@pytest.mark.parametrize(
    ("conditions", "unheard"),
    [
        ([condition("ContainersReady", "True"), condition("Ready", "False")], True),
        ([condition("ContainersReady", "True"), condition("Ready", "True")], False),
        ([condition("ContainersReady", "False", "ContainersNotReady"), condition("Ready", "False")], False),
        ([condition("ContainersReady", "True"), condition("Ready", "False", "ReadinessGatesNotReady")], False),
        ([condition("Ready", "False")], False),
        ([condition("ContainersReady", "True")], False),
    ],
)
def test_a_pod_whose_node_is_silent_is_told_from_one_that_is_not_ready(
    conditions: list[dict[str, str]], unheard: bool
) -> None:
    pod = changed(POD, "status", "conditions", value=conditions)
    assert table_of([DEPLOYMENT], [pod]).models[0].replicas[0].unheard is unheard


def test_a_pod_of_another_namespace_is_not_ours_whatever_it_says() -> None:
    spoofed = changed(POD, "metadata", "namespace", value="elsewhere")
    (model,) = table_of([DEPLOYMENT], [spoofed]).models
    assert model.replicas == ()


def test_a_pod_of_an_earlier_object_of_the_same_name_is_not_ours() -> None:
    orphan = changed(POD, "metadata", "ownerReferences", value=[{**OWNER, "uid": "u-0"}])
    bystander = changed(POD, "metadata", "ownerReferences", value=[{**OWNER, "controller": False}])
    nobodys = changed(POD, "metadata", "ownerReferences", value=None)
    assert table_of([DEPLOYMENT], [orphan, bystander, nobodys]).models[0].replicas == ()


def test_ipv6_addresses_are_bracketed() -> None:
    pod = changed(POD, "status", "podIP", value="fd00::7")
    assert table_of([DEPLOYMENT], [pod]).models[0].replicas[0].url == "http://[fd00::7]:8000"


def test_a_name_that_is_still_rolling_out_waits_for_the_new_pods() -> None:
    item = changed(DEPLOYMENT, "spec", "model", value={"servedNames": ["gemma", "new"]})
    args = ["serve", "/m", "--name=gemma", "--name", "new"]
    newer = changed(POD, "spec", "containers", value=[{"name": "sidecar"}, {"name": "runtime", "args": args}])
    newer["metadata"] |= {"uid": "p-2", "name": "gemma-x2"}
    (model,) = table_of([item], [newer, POD]).models
    assert [replica.id for replica in model.ready_for("gemma")] == ["p-1", "p-2"]
    assert [replica.id for replica in model.ready_for("new")] == ["p-2"]


@given(st.permutations(range(4)))
def test_the_order_of_events_does_not_matter(order: list[int]) -> None:
    pods = [changed(POD, "metadata", value=POD["metadata"] | {"uid": f"p-{i}", "name": f"n-{i}"}) for i in range(4)]
    assert table_of([DEPLOYMENT], [pods[i] for i in order]) == table_of([DEPLOYMENT], pods)


SHARED: dict[str, Any] = {
    **changed(POD, "metadata", "name", value="shared-x1"),
    "spec": {"containers": [{"name": "runtime", "args": ["host", "--host", "0.0.0.0"]}]},
}
SHARED["metadata"] |= {"ownerReferences": [{"kind": "RuntimePool", "name": "shared", "uid": "r-1", "controller": True}]}
HOST: dict[str, Any] = {
    "metadata": {
        "namespace": "team",
        "name": "shared-x1",
        "uid": "h-1",
        "resourceVersion": "1",
        "ownerReferences": [{"kind": "Pod", "name": "shared-x1", "uid": "p-1", "controller": True}],
    },
    "status": {"models": [{"namespace": "team", "name": "gemma", "state": "InHost", "servedNames": ["gemma", "g"]}]},
}


@pytest.mark.parametrize("state", ["OnDisk", "InHost", "Waking", "Resident"])
def test_a_model_in_a_pool_is_reached_at_its_host_awake_or_asleep(state: str) -> None:
    host = changed(HOST, "status", "models", value=[{**HOST["status"]["models"][0], "state": state}])
    (model,) = table_of([DEPLOYMENT], [SHARED], [host]).models
    (replica,) = model.replicas
    assert (replica.url, replica.ready, replica.names) == ("http://198.18.0.7:8000", True, frozenset({"gemma", "g"}))


@pytest.mark.parametrize("state", ["Absent", "Fetching"])
def test_a_host_that_does_not_answer_for_a_model_yet_or_any_more(state: str) -> None:
    host = changed(HOST, "status", "models", value=[{**HOST["status"]["models"][0], "state": state}])
    assert table_of([DEPLOYMENT], [SHARED], [host]).models[0].replicas == ()


def test_a_host_at_which_a_model_drains_is_asked_where_no_other_is_ready() -> None:
    """It holds the request, and wakes the model again or reports that it is gone."""
    draining = changed(HOST, "status", "models", value=[{**HOST["status"]["models"][0], "state": "Draining"}])
    (model,) = table_of([DEPLOYMENT], [SHARED], [draining]).models
    (replica,) = model.ready_for("gemma")
    assert (replica.url, replica.ready, replica.draining) == ("http://198.18.0.7:8000", True, True)
    own = changed(changed(POD, "metadata", "uid", value="p-9"), "status", "podIP", value="198.18.0.9")
    (model,) = table_of([DEPLOYMENT], [own, SHARED], [draining]).models
    assert [other.url for other in model.ready_for("gemma")] == ["http://198.18.0.9:8000"]


def test_the_pods_own_readiness_counts_whatever_its_modelhost_says() -> None:
    """The operator, which writes ModelHosts, may be dead for long."""
    unready = changed(SHARED, "status", "conditions", value=[{"type": "Ready", "status": "False", "reason": "x"}])
    (replica,) = table_of([DEPLOYMENT], [unready], [HOST]).models[0].replicas
    assert not replica.ready
    assert table_of([DEPLOYMENT], [], [HOST]).models[0].replicas == ()
    going = changed(SHARED, "metadata", "deletionTimestamp", value="2026-01-01T00:00:00Z")
    assert table_of([DEPLOYMENT], [going], [HOST]).models[0].replicas == ()


def test_a_modelhost_of_another_pod_or_namespace_says_nothing() -> None:
    other = changed(SHARED, "metadata", "uid", value="p-2")
    assert table_of([DEPLOYMENT], [other], [HOST]).models[0].replicas == ()
    elsewhere = changed(HOST, "metadata", "namespace", value="other")
    assert table_of([DEPLOYMENT], [SHARED], [elsewhere]).models[0].replicas == ()
    foreign = changed(HOST, "status", "models", value=[{**HOST["status"]["models"][0], "namespace": "other"}])
    assert table_of([DEPLOYMENT], [SHARED], [foreign]).models[0].replicas == ()
    assert (
        table_of([DEPLOYMENT], [SHARED], [changed(HOST, "metadata", "ownerReferences", value=[])]).models[0].replicas
        == ()
    )


@pytest.mark.parametrize(
    ("home", "said", "believed"),
    [
        ("team", {}, True),
        ("team", {"admitted": True}, True),
        ("team", {"admitted": False}, False),
        ("pools", {}, False),
        ("pools", {"admitted": True}, True),
        ("pools", {"admitted": False}, False),
    ],
)
def test_a_host_is_believed_to_have_what_the_operator_admits(home: str, said: dict[str, bool], believed: bool) -> None:
    """`home`: the namespace of the pool; the model is in `team`. Without `admitted`, only its own namespace's pools
    are accepted.
    """
    entry = {**HOST["status"]["models"][0], **said}
    host = changed(changed(HOST, "metadata", "namespace", value=home), "status", "models", value=[entry])
    shared = changed(SHARED, "metadata", "namespace", value=home)
    replicas = table_of([DEPLOYMENT], [shared], [host]).models[0].replicas
    assert [replica.url for replica in replicas] == (["http://198.18.0.7:8000"] if believed else [])


def test_while_a_model_moves_both_its_own_pods_and_its_hosts_answer() -> None:
    own = changed(changed(POD, "metadata", "uid", value="p-9"), "status", "podIP", value="198.18.0.9")
    (model,) = table_of([DEPLOYMENT], [own, SHARED], [HOST]).models
    assert [replica.url for replica in model.ready_for("gemma")] == ["http://198.18.0.9:8000", "http://198.18.0.7:8000"]
