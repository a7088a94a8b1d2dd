"""Pools on a real API server: the whole operator, with the chart's rights, and hosts over real HTTP.

Pods get loopback addresses of their own, at which the operator finds the hosts.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from operator_support.apiserver import RELEASE_NAMESPACE, SECOND, ApiServer, until
from operator_support.direct import Direct, Refused
from operator_support.kubelets import Kubelets, holds
from operator_support.objects import Json
from operator_support.pooled import HOST_KEY
from operator_support.recording import IMAGE, RecordingClient
from operator_support.running import running

from plimsoll_operator.build.host import build_host as build_pod
from plimsoll_operator.controller import work_queue
from plimsoll_operator.kube.api import Api, ApiError
from plimsoll_operator.kube.stores import PODS
from plimsoll_operator.pools.hosts.host_registry import HostPod
from plimsoll_operator.pools.hosts.model_host import build_host
from plimsoll_operator.spec.identity import POOL_LABEL, ObjectKey
from plimsoll_operator.spec.runtime_pool import read_pool

pytestmark = pytest.mark.usefixtures("lease")

POOL: Json = {"replicas": 2, "resources": {"memory": "2Gi"}, "memory": {"sleepers": "512Mi"}}


def model(pool: str = "shared", **spec: Any) -> Json:
    return {"model": {"source": "demo://gemma-3-270m"}, "placement": {"pool": pool}, **spec}


def conditions(direct: Direct, name: str) -> dict[str, tuple[str, str]]:
    found = direct.model(name).get("status", {}).get("conditions", ())
    return {c["type"]: (c["status"], c["reason"]) for c in found}


def reporting(direct: Direct, host: str) -> tuple[str, str]:
    found = direct.hosts()[host].get("status", {}).get("conditions", ())
    return next(((c["status"], c["reason"]) for c in found if c["type"] == "Reporting"), ("", ""))


def loads(kubelets: Kubelets) -> list[str]:
    return sorted(model.name for host in kubelets.hosts.values() for model in host.loads)


async def test_models_are_placed_and_told_of(server: ApiServer, direct: Direct, kubelets: Kubelets, keys: Path) -> None:
    direct.create_pool("shared", POOL)
    for name in ("a", "b", "c"):
        direct.create_model(name, model())
    async with running(server, direct.namespace, "--host-keys", str(keys)):
        await kubelets.start(2)
        assert await holds(lambda: all(conditions(direct, n).get("Ready", ("", ""))[0] == "True" for n in "abc"))
        assert await holds(lambda: len(direct.hosts()) == 2)
        assert await holds(lambda: {reporting(direct, name) for name in kubelets.hosts} == {("True", "Reporting")})
        assert loads(kubelets) == ["a", "b", "c"]
        for name in "abc":
            status = direct.model(name)["status"]
            (placement,) = status["placements"]
            assert placement["host"] in kubelets.hosts
            assert status["where"].startswith(placement["host"])
            assert "Placed" in [reason for _, reason, _ in direct.events(name)]
        pool = direct.pool("shared")["status"]
        assert (pool["readyReplicas"], pool["phase"]) == (2, "Ready")
        for name, item in direct.hosts().items():
            assert item["metadata"]["ownerReferences"][0]["name"] == name


async def test_a_process_that_takes_over_places_nothing_anew(
    server: ApiServer, direct: Direct, kubelets: Kubelets, keys: Path
) -> None:
    direct.create_pool("shared", POOL)
    direct.create_model("a", model(replicas=2))
    async with running(server, direct.namespace, "--host-keys", str(keys)):
        await kubelets.start(2)
        assert await holds(lambda: conditions(direct, "a").get("Progressing") == ("False", "Settled"))
    direct.create_model("b", model())
    async with running(server, direct.namespace, "--host-keys", str(keys)):
        assert await holds(lambda: conditions(direct, "b").get("Progressing") == ("False", "Settled"))
        assert loads(kubelets) == ["a", "a", "b"]


async def test_a_host_that_lies_or_is_silent_is_told_of(
    server: ApiServer, direct: Direct, kubelets: Kubelets, keys: Path
) -> None:
    direct.create_pool("shared", POOL | {"replicas": 1})
    direct.create_model("a", model())
    async with running(server, direct.namespace, "--host-keys", str(keys)):
        await kubelets.start(1)
        ((name, host),) = kubelets.hosts.items()
        assert await holds(lambda: conditions(direct, "a").get("Ready", ("", ""))[0] == "True")
        host.lie = lambda report: report | {"sequence": report["sequence"] - 1, "models": []}
        assert await holds(lambda: reporting(direct, name) == ("False", "ReportRefused"))
        host.lie = lambda report: report
        assert await holds(lambda: reporting(direct, name) == ("True", "Reporting"))
        host.dead = True
        assert await holds(lambda: reporting(direct, name) == ("False", "Unreachable"))
        host.restart("another")
        assert await holds(lambda: reporting(direct, name) == ("True", "Reporting"))
        assert await holds(lambda: loads(kubelets) == ["a", "a"]), "the new process has nothing, and is given it"
        assert await holds(lambda: conditions(direct, "a").get("Ready", ("", ""))[0] == "True")


async def test_a_host_with_other_tokens_is_not_believed_and_gets_nothing(
    server: ApiServer, direct: Direct, kubelets: Kubelets, keys: Path
) -> None:
    direct.create_pool("shared", POOL | {"replicas": 1})
    direct.create_model("a", model())
    async with running(server, direct.namespace, "--host-keys", str(keys)):
        await kubelets.start(1)
        ((name, host),) = kubelets.hosts.items()
        assert await holds(lambda: conditions(direct, "a").get("Ready", ("", ""))[0] == "True")
        host.tokens = frozenset({"of somebody else"})
        assert await holds(lambda: reporting(direct, name) == ("False", "Unreachable"))
        (condition,) = direct.hosts()[name]["status"]["conditions"]
        assert "401" in condition["message"]


async def test_a_model_moves_from_its_own_pods_into_a_pool(
    server: ApiServer, direct: Direct, kubelets: Kubelets, keys: Path
) -> None:
    direct.create_model("a", {"model": {"source": "demo://gemma-3-270m"}})
    async with running(server, direct.namespace, "--host-keys", str(keys)):
        assert await holds(lambda: len(direct.pods("a")) == 1)
        direct.make_ready("a")
        assert await holds(lambda: conditions(direct, "a").get("Ready") == ("True", "Ready"))
        direct.create_pool("shared", POOL | {"replicas": 1})
        direct.change_model("a", placement={"pool": "shared"})
        await kubelets.start(1)
        assert await holds(lambda: ["deletionTimestamp" in p["metadata"] for p in direct.pods("a")] == [True])
        assert conditions(direct, "a")["Ready"][0] == "True"
        direct.make_ready("a")
        assert await holds(lambda: conditions(direct, "a").get("Progressing") == ("False", "Settled"))


async def test_a_model_of_another_namespace_is_placed_once_the_pool_takes_it(
    server: ApiServer, direct: Direct, other: Direct, kubelets: Kubelets, keys: Path
) -> None:
    direct.create_pool("shared", POOL | {"replicas": 1})
    other.create_model("guest", model())
    other.change_model("guest", placement={"pool": "shared", "namespace": direct.namespace})
    async with running(server, direct.namespace, "--namespace", other.namespace, "--host-keys", str(keys)):
        await kubelets.start(1)
        assert await holds(lambda: conditions(other, "guest").get("Placed") == ("False", "NamespaceNotAdmitted"))
        assert loads(kubelets) == []
        direct.change_pool("shared", namespaces={"matchLabels": {"kubernetes.io/metadata.name": other.namespace}})
        assert await holds(lambda: conditions(other, "guest").get("Ready", ("", ""))[0] == "True")
        ((name, _),) = kubelets.hosts.items()
        (placement,) = other.model("guest")["status"]["placements"]
        assert placement["host"] == name
        assert await holds(lambda: direct.hosts()[name]["status"].get("models", ()) != ())
        (entry,) = direct.hosts()[name]["status"]["models"]
        assert (entry["namespace"], entry["name"]) == (other.namespace, "guest")
        assert "Placed" in [reason for _, reason, _ in other.events("guest")]
        other.change_model("guest", model={"source": "pvc://weights/guest"})
        assert await holds(lambda: conditions(other, "guest").get("Placed") == ("False", "SourceNotAdmitted"))
        other.change_model("guest", model={"source": "demo://gemma-3-270m"})
        assert await holds(lambda: conditions(other, "guest").get("Ready", ("", ""))[0] == "True")
        direct.change_pool("shared", namespaces=None)
        assert await holds(lambda: conditions(other, "guest").get("Placed") == ("False", "NamespaceNotAdmitted"))
        ((_, host),) = kubelets.hosts.items()
        assert await holds(lambda: not host.models), "it was taken off the host"


@pytest.mark.long
async def test_a_decision_is_explained_from_the_cluster_as_it_is(
    server: ApiServer, direct: Direct, kubelets: Kubelets, keys: Path
) -> None:
    """A user who may list what the operator watches gets the planner's explanation.

    It reads all namespaces, so its models have names that no other test uses.
    """
    names, before = ("explained-a", "explained-b"), len(server.writes(SECOND))
    direct.create_pool("shared", POOL | {"replicas": 1})
    for name in names:
        direct.create_model(name, model())
    direct.create_model("apart", {"model": {"source": "demo://x"}})
    async with running(server, direct.namespace, "--host-keys", str(keys)):
        await kubelets.start(1)
        assert await holds(lambda: all(conditions(direct, n).get("Progressing") == ("False", "Settled") for n in names))
        ((host, _),) = kubelets.hosts.items()
        assert await holds(lambda: len(direct.hosts()[host]["status"].get("models", ())) == 2)
        environment = os.environ | {"KUBECONFIG": str(server.kubeconfig(SECOND))}

        def told(name: str, *more: str) -> tuple[int, str, str]:
            words = ["explain", f"mdep/{name}", "-n", direct.namespace, *more]
            asked = [sys.executable, "-m", "plimsoll_operator", *words]
            done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False, timeout=120)
            return done.returncode, done.stdout, done.stderr

        code, text, error = await asyncio.to_thread(told, names[0])
        assert code == 0, error
        assert f"{direct.namespace}/{host}: " in text.partition("Copies:")[2].partition("Actions:")[0]
        assert "Actions:\n  none" in text
        code, near, _ = await asyncio.to_thread(told, names[0], "--watched", direct.namespace)
        assert (code, "Actions:\n  none" in near) == (0, True)
        for name, words in (("apart", "has dedicated pods"), ("nobody", "there is no ModelDeployment")):
            code, _, error = await asyncio.to_thread(told, name)
            assert (code, words in error) == (1, True)
    assert len(server.writes(SECOND)) == before, "it only reads"


@pytest.mark.long
async def test_pods_that_a_quota_refuses_are_made_once_it_lets_them(
    server: ApiServer, direct: Direct, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a resync, and without a status written in between."""
    monkeypatch.setattr(work_queue, "RESYNC_SECONDS", 3600.0)
    direct.create_quota("none", pods=0)
    direct.create_pool("shared", POOL | {"replicas": 1})
    direct.create_model("a", {"model": {"source": "demo://gemma-3-270m"}})

    def refused(found: Json) -> bool:
        told = {c["type"]: c["reason"] for c in found.get("status", {}).get("conditions", ())}
        return told.get("Placed") == "Rejected"

    def versions() -> list[str]:
        return [found["metadata"]["resourceVersion"] for found in (direct.model("a"), direct.pool("shared"))]

    async with running(server, direct.namespace, "--host-keys", str(keys)):
        assert await holds(lambda: refused(direct.model("a")) and refused(direct.pool("shared")))
        written = versions()
        assert not await asyncio.to_thread(until, lambda: versions() != written, 8.0), "a try writes nothing"
        direct.delete_quota("none")
        assert await asyncio.to_thread(until, lambda: len(direct.pods("a")) == 1, 20.0)
        assert await asyncio.to_thread(until, lambda: not refused(direct.pool("shared")), 20.0)
        assert await holds(lambda: not refused(direct.model("a")))


def has_two_pods(direct: Direct, pool: str) -> bool:
    path = f"/api/v1/namespaces/{direct.namespace}/pods"
    return len(direct.ask("GET", path, labelSelector=f"{POOL_LABEL}={pool}")["items"]) == 2


async def test_a_pod_that_is_refused_for_want_of_its_pool_is_tried_again(
    server: ApiServer, http: RecordingClient, direct: Direct, keys: Path
) -> None:
    """The pool was just deleted, or just created and not seen by the API server yet."""
    pool = {"metadata": {"namespace": direct.namespace, "name": "gone", "uid": "uid-1", "generation": 1}, "spec": POOL}
    pod = build_pod(read_pool(pool), IMAGE, HOST_KEY, "x1y2z")
    with pytest.raises(ApiError, match="no params found for policy binding") as refused:
        await Api(http).create(PODS, pod)
    assert refused.value.is_passing
    assert not refused.value.is_refusal
    async with running(server, direct.namespace, "--host-keys", str(keys)):
        for name in ("first", "second"):
            direct.create_pool(name, POOL)
            assert await holds(partial(has_two_pods, direct, name))
            direct.delete_pool(name)


def is_created(hands: Direct, path: str, body: Json) -> bool:
    try:
        hands.ask("POST", path, body)
    except Refused as refused:
        assert "no params found" in str(refused)  # noqa: PT017 - another refusal would never pass
        return False
    return True


async def test_only_the_operator_writes_modelhosts(direct: Direct, as_editor: Direct, as_operator: Direct) -> None:
    direct.create_pool("shared", POOL)
    body = build_host(HostPod(ObjectKey(direct.namespace, "shared"), "h", "uid-1", "node", "198.18.0.9", 0))
    path = f"/apis/plimsoll.dev/v1alpha1/namespaces/{direct.namespace}/modelhosts"
    with pytest.raises(Refused, match="403"):
        as_editor.ask("POST", path, body)
    assert await holds(lambda: is_created(as_operator, path, body)), (
        "the API server learns of the pool in the background"
    )
    with pytest.raises(Refused, match="403"):
        as_editor.ask("PATCH", f"{path}/h/status", {"status": {"load": "x"}}, "application/merge-patch+json")
    with pytest.raises(Refused, match="403"):
        as_operator.ask("GET", f"/api/v1/namespaces/{direct.namespace}/secrets")
    with pytest.raises(Refused, match="403"):
        as_operator.ask("GET", f"/api/v1/namespaces/{RELEASE_NAMESPACE}/secrets/plimsoll-host-keys")
