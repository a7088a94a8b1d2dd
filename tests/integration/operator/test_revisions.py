"""Revisions on a real API server: stored before their pods are created, reused, bounded, and restored by a patch."""

from __future__ import annotations

from typing import Any

import pytest
from operator_support.apiserver import FIRST, ApiServer
from operator_support.direct import Direct
from operator_support.objects import Json
from operator_support.recording import Operator

from plimsoll_operator.kube.rbac import RIGHTS
from plimsoll_operator.spec.identity import GROUP_LABEL, REVISION_LABEL, ObjectKey

SOURCE: Json = {"model": {"source": "demo://gemma-3-270m"}}
VERBS = {verb for group, kind, verb in RIGHTS if kind == "controllerrevisions"}


@pytest.fixture
def key(direct: Direct) -> ObjectKey:
    return ObjectKey(direct.namespace, "m")


async def serve(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    """Alternate reconciles and kubelets until nothing changes."""
    for _ in range(12):
        await operator.until_quiet(key)
        if not direct.make_ready(key.name):
            return
    raise AssertionError("it does not come to rest")


def labels(items: list[Json]) -> list[str]:
    return [item["metadata"]["labels"][REVISION_LABEL] for item in items]


async def test_what_pods_are_made_of_is_stored_first(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    created = direct.create_model("m", {**SOURCE, "replicas": 2, "runtime": {"maxModelLen": 64}})
    await operator.until_quiet(key)
    (revision,) = direct.revisions("m")
    assert revision["data"]["spec"] == {
        part: created["spec"][part] for part in ("model", "resources", "runtime", "template")
    }
    (owner,) = revision["metadata"]["ownerReferences"]
    assert owner["uid"] == created["metadata"]["uid"]
    assert labels(direct.pods("m")) == labels([revision]) * 2
    assert sorted(pod["metadata"]["labels"][GROUP_LABEL] for pod in direct.pods("m")) == ["0", "1"]
    writes = [url.partition("?")[0].rpartition("/")[2] for _, url in operator.http.writes]
    assert writes.index("controllerrevisions") < writes.index("pods")


async def test_going_back_finds_the_old_revision_again(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    """As in docs/operations/operator.md: the stored parts replace those of the spec."""
    direct.create_model("m", SOURCE)
    await serve(operator, direct, key)
    (first,) = direct.revisions("m")
    direct.change_model("m", runtime={"maxModelLen": 64}, template={"labels": {"team": "search"}})
    await serve(operator, direct, key)
    assert [int(r["revision"]) for r in direct.revisions("m")] == [1, 2]
    patch = [{"op": "add", "path": f"/spec/{k}", "value": v} for k, v in first["data"]["spec"].items()]
    path = f"/apis/plimsoll.dev/v1alpha1/namespaces/{direct.namespace}/modeldeployments/m"
    direct.ask("PATCH", path, patch, "application/json-patch+json")
    await serve(operator, direct, key)
    found = direct.revisions("m")
    assert [int(r["revision"]) for r in found] == [2, 3]
    assert found[-1]["metadata"]["uid"] == first["metadata"]["uid"]
    assert labels(direct.pods("m")) == labels([first])


async def test_the_history_is_bounded_and_keeps_what_pods_need(
    operator: Operator, direct: Direct, key: ObjectKey
) -> None:
    direct.create_model("m", {**SOURCE, "revisionHistoryLimit": 1})
    await serve(operator, direct, key)
    (first,) = labels(direct.revisions("m"))
    for length in (64, 65, 66):
        direct.change_model("m", runtime={"maxModelLen": length})
        await operator.until_quiet(key)
    assert first in labels(direct.pods("m")), "it serves until a newer one does"
    assert len(direct.revisions("m")) == 4 - 1
    assert labels(direct.revisions("m"))[0] == first
    await serve(operator, direct, key)
    assert len(direct.revisions("m")) == 2


@pytest.mark.parametrize("verb", sorted(VERBS - {"list", "watch"}))
async def test_each_right_is_needed(
    operator: Operator, direct: Direct, server: ApiServer, key: ObjectKey, verb: str
) -> None:
    """The API server's audit log shows that each verb was used."""
    direct.create_model("m", SOURCE)
    await serve(operator, direct, key)
    for length in (64, None):
        direct.change_model("m", runtime={"maxModelLen": length})
        await serve(operator, direct, key)
    direct.change_model("m", revisionHistoryLimit=0)
    await serve(operator, direct, key)
    events: list[dict[str, Any]] = [
        event
        for event in server.requests(FIRST)
        if event.get("objectRef", {}).get("resource") == "controllerrevisions"
        and event["objectRef"].get("namespace") == direct.namespace
    ]
    assert verb in {event["verb"] for event in events if event["responseStatus"]["code"] < 300}
