"""Scaling on a real API server: the whole operator, with the chart's rights, and gateways over real HTTP."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from operator_support.apiserver import ApiServer, until
from operator_support.direct import MERGE, Direct
from operator_support.objects import Json
from operator_support.running import running
from operator_support.stub_gateway import StubGateway, Wait, serve

from plimsoll_operator.spec.identity import ObjectKey

pytestmark = pytest.mark.usefixtures("lease")

SECONDS = 180.0
SOURCE = {"model": {"source": "demo://gemma-3-270m"}}


def scaled(least: int = 0, most: int = 5, **scaling: Any) -> Json:
    bounds = {"minReplicas": least, "maxReplicas": most, "idleSeconds": 10, "scaleDownSeconds": 0}
    return {**SOURCE, "scaling": {**bounds, **scaling}}


async def holds(true: Callable[[], bool]) -> bool:
    """Wait in another thread, because the operator runs in this one."""
    return await asyncio.to_thread(until, true, SECONDS)


@pytest.fixture
def gateway() -> StubGateway:
    return StubGateway(now=time.time)


@pytest.fixture
async def port(gateway: StubGateway) -> AsyncIterator[int]:
    async with serve(gateway) as port:
        yield port


@pytest.fixture
def key(direct: Direct) -> ObjectKey:
    return ObjectKey(direct.namespace, "m")


def status(direct: Direct) -> Json:
    found: Json = direct.model("m").get("status", {})
    return found


def desired(direct: Direct) -> int | None:
    return status(direct).get("desiredReplicas")


def conditions(direct: Direct) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status(direct).get("conditions", ())}


def live(direct: Direct) -> int:
    return sum("deletionTimestamp" not in pod["metadata"] for pod in direct.pods("m"))


def scalings(direct: Direct) -> list[str]:
    return [reason for _, reason, _ in direct.events("m") if reason.startswith("Scaled")]


@pytest.mark.long
async def test_to_zero_and_back(
    server: ApiServer, direct: Direct, gateway: StubGateway, port: int, key: ObjectKey
) -> None:
    direct.create_model("m", scaled())
    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        assert await holds(lambda: live(direct) == 1), "a new model shows that it can be served"
        direct.make_ready("m")
        assert await holds(lambda: desired(direct) == 0)
        assert await holds(lambda: live(direct) == 0)
        direct.make_ready("m")
        assert await holds(lambda: conditions(direct).get("Progressing") == ("False", "Settled"))
        assert conditions(direct) == {
            "Ready": ("True", "Idle"),
            "Progressing": ("False", "Settled"),
            "Placed": ("True", "Scheduled"),
            "Loaded": ("False", "Idle"),
            "Routable": ("True", "Idle"),
        }
        assert status(direct)["phase"] == "Idle"
        assert re.search(r"no requests for [1-9]\d+ s", status(direct)["scaling"]["why"])
        answered = len(gateway.waits)
        gateway.hold(key, 2)
        assert await holds(lambda: live(direct) == 1)
        # If news comes between two requests, the second one returns without a wait.
        assert gateway.waits[answered : answered + 1] in ([], [Wait.NEWS]), "the request returned after its whole wait"
        assert desired(direct) == 1
        direct.make_ready("m")
        gateway.let_go(key)
        assert await holds(lambda: conditions(direct).get("Ready") == ("True", "Ready"))
        assert scalings(direct) == ["ScaledToZero", "ScaledFromZero"]
        assert direct.model("m")["spec"]["replicas"] == 1, "people's"


@pytest.mark.long
async def test_a_model_that_does_not_load_is_never_ready_and_is_tried_again_when_asked_for(
    server: ApiServer, direct: Direct, gateway: StubGateway, port: int, key: ObjectKey
) -> None:
    direct.create_model("m", scaled() | {"template": {"startupDeadlineSeconds": 30}})
    ended = {
        "terminated": {"exitCode": 3, "reason": "Error", "message": "model-source: hf://no/such-model is not there"}
    }
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        assert await holds(lambda: live(direct) == 1)
        (pod,) = direct.pods("m")
        direct.bind(pod)
        direct.report(pod, waiting, restarts=1, last=ended)
        assert await holds(lambda: conditions(direct).get("Ready") == ("False", "ModelSourceNotFound"))
        assert not await asyncio.to_thread(until, lambda: desired(direct) == 0, 15.0), "it may load yet"
        assert await holds(lambda: desired(direct) == 0)
        assert await holds(lambda: live(direct) == 0)
        direct.make_ready("m")
        assert await holds(lambda: conditions(direct).get("Progressing") == ("False", "Settled"))
    failed = {
        "Ready": ("False", "ModelSourceNotFound"),
        "Progressing": ("False", "Settled"),
        "Placed": ("True", "Scheduled"),
        "Loaded": ("False", "ModelSourceNotFound"),
        "Routable": ("False", "NoReadyReplica"),
    }
    assert conditions(direct) == failed, "nothing is Stalled: gateways hold the next request"
    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        assert not await asyncio.to_thread(until, lambda: conditions(direct) != failed, 12.0)
        assert status(direct)["phase"] == "Failed"
        (message,) = [c["message"] for c in status(direct)["conditions"] if c["type"] == "Ready"]
        assert "hf://no/such-model is not there (1 restart); scaled to zero before it loaded: a request" in message
        gateway.hold(key)
        assert await holds(lambda: live(direct) == 1)
        direct.make_ready("m")
        gateway.let_go(key)
        assert await holds(lambda: conditions(direct).get("Ready") == ("True", "Ready"))
        gateway.end(key)
        assert await holds(lambda: conditions(direct).get("Ready") == ("True", "Idle")), "it has loaded once"
        assert scalings(direct) == ["ScaledToZero", "ScaledFromZero", "ScaledToZero"]


@pytest.mark.long
async def test_load_brings_replicas_a_budget_and_a_reason(
    server: ApiServer, direct: Direct, gateway: StubGateway, port: int, key: ObjectKey
) -> None:
    direct.create_model("m", scaled(1))
    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        assert await holds(lambda: live(direct) == 1)
        direct.make_ready("m")
        model = gateway.of(key)
        model.replicas, model.running, model.waiting = 1, 8, 20
        gateway.ask(key, 28)
        assert await holds(lambda: live(direct) == 3)
        direct.make_ready("m")
        model.replicas, model.waiting, model.running = 3, 0, 24
        assert await holds(lambda: direct.budget("m")["spec"]["minAvailable"] == 2)
        gateway.end(key, 28)
        model.running = 0
        assert await holds(lambda: desired(direct) == 1)
        assert await holds(lambda: live(direct) == 1)
        assert set(scalings(direct)) == {"ScaledUp", "ScaledDown"}
        (up,) = [note for _, reason, note in direct.events("m") if reason == "ScaledUp"][:1]
        assert "requests at a time are expected, and a replica serves" in up


@pytest.mark.long
async def test_a_process_that_takes_over_goes_on_from_the_status(
    server: ApiServer, direct: Direct, gateway: StubGateway, port: int, key: ObjectKey
) -> None:
    direct.create_model("m", scaled(1, scaleDownSeconds=3600))
    model = gateway.of(key)
    model.replicas, model.waiting = 1, 20
    gateway.ask(key, 28)
    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        assert await holds(lambda: (desired(direct) or 0) >= 3)
    made = desired(direct)
    gateway.end(key, 28)
    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        assert await holds(lambda: live(direct) == made)
        assert not await asyncio.to_thread(until, lambda: live(direct) != made, 12.0), "it has not watched for an hour"


@pytest.mark.long
async def test_without_gateways_nothing_goes_and_people_hear_why(
    server: ApiServer, direct: Direct, key: ObjectKey
) -> None:
    direct.create_model("m", scaled(0, 3))
    async with running(server, direct.namespace):
        assert await holds(lambda: live(direct) == 1)
        direct.make_ready("m")
        assert not await asyncio.to_thread(until, lambda: live(direct) != 1, 15.0)
        direct.change_model("m", scaling={"minReplicas": 2})
        assert await holds(lambda: live(direct) == 2), "bounds are people's"
        direct.change_model("m", replicas=0)
        assert await holds(lambda: live(direct) == 0), "0 stops it"
        direct.make_ready("m")
        assert await holds(lambda: conditions(direct).get("Ready") == ("True", "Stopped"))


async def test_replicas_that_another_autoscaler_writes_are_ignored_and_a_condition_says_so(
    server: ApiServer, direct: Direct, key: ObjectKey
) -> None:
    """An autoscaler writes the scale subresource repeatedly: a condition reports that, without events."""
    direct.create_model("m", scaled(1))
    path = f"/apis/plimsoll.dev/v1alpha1/namespaces/{direct.namespace}/modeldeployments/m/scale"

    def message() -> str:
        found = [c["message"] for c in status(direct).get("conditions", ()) if c["type"] == "ReplicasIgnored"]
        return "".join(found)

    async with running(server, direct.namespace):
        assert await holds(lambda: live(direct) == 1)
        direct.make_ready("m")
        assert await holds(lambda: conditions(direct).get("Ready") == ("True", "Ready"))
        assert "ReplicasIgnored" not in conditions(direct), "1 is the default"
        events = direct.events("m")
        for replicas in (4, 7):
            direct.ask("PATCH", path, {"spec": {"replicas": replicas}}, MERGE)
            assert await holds(lambda: message().startswith(f"spec.replicas is {replicas} and has no effect"))  # noqa: B023
            assert conditions(direct)["ReplicasIgnored"] == ("True", "ScaledByDemand")
            assert conditions(direct)["Ready"] == ("True", "Ready")
            assert (desired(direct), live(direct)) == (1, 1)
        assert direct.events("m") == events
        direct.change_model("m", replicas=1)
        assert await holds(lambda: "ReplicasIgnored" not in conditions(direct))
        direct.change_model("m", replicas=3, scaling=None)
        assert await holds(lambda: live(direct) == 3), "without spec.scaling it counts"
        assert "ReplicasIgnored" not in conditions(direct)


@pytest.mark.long
async def test_a_gateway_that_lies_is_not_believed(
    server: ApiServer, direct: Direct, gateway: StubGateway, port: int, key: ObjectKey
) -> None:
    direct.create_model("m", scaled(0))
    gateway.ask(key)
    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        assert await holds(lambda: live(direct) == 1)
        direct.make_ready("m")
        gateway.lie = lambda answer: answer | {"sequence": -1, "models": []}
        gateway.end(key)
        assert not await asyncio.to_thread(until, lambda: desired(direct) == 0, 15.0), "it might be in use"
        gateway.lie = lambda answer: answer
        assert await holds(lambda: desired(direct) == 0)
