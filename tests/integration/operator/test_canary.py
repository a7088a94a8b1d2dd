"""Canaries on a real API server: the whole operator, with the chart's rights, and a gateway over real HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from operator_support.apiserver import ApiServer, until
from operator_support.direct import Direct
from operator_support.objects import Json
from operator_support.running import running
from operator_support.stub_gateway import StubGateway, serve

from plimsoll_operator.build.controller_revision import TAKEN_BACK
from plimsoll_operator.spec.identity import REVISION_LABEL, ObjectKey

pytestmark = pytest.mark.usefixtures("lease")

SECONDS = 180.0
ROLLOUT = {"canary": {"steps": [{"weight": 10, "pauseSeconds": 0}, {"weight": 50, "pauseSeconds": 0}]}}
SPEC: Json = {"model": {"source": "demo://gemma-3-270m"}, "replicas": 2, "rollout": ROLLOUT}
SCALED: Json = {
    "model": SPEC["model"],
    "scaling": {"minReplicas": 2, "maxReplicas": 8, "scaleDownSeconds": 300},
    "rollout": {"canary": {"steps": [{"weight": 50, "pauseSeconds": 0}]}},
}


class Counting:
    """A gateway with counts of requests and failures by revision."""

    def __init__(self, key: ObjectKey) -> None:
        self.key = key
        self.requests: dict[str, int] = {}
        self.errors: dict[str, int] = {}
        self.gateway = StubGateway(now=time.time, lie=self._tell)
        self.gateway.of(key)

    def count(self, revision: str, requests: int, errors: int = 0) -> None:
        self.requests[revision] = self.requests.get(revision, 0) + requests
        self.errors[revision] = self.errors.get(revision, 0) + errors

    def load(self, running: int, waiting: int) -> None:
        """Set the number of running and waiting requests."""
        model = self.gateway.of(self.key)
        coming = running + waiting - model.in_flight
        if coming > 0:
            self.gateway.ask(self.key, coming)
        else:
            self.gateway.end(self.key, -coming)
        model.replicas, model.running, model.waiting = 2, running, waiting

    def _tell(self, answer: Json) -> Json:
        """Add the counts of each revision to a report; the first one has the whole load."""
        (model,) = answer["models"]
        revisions: list[Json] = [
            {"revision": name, "requests": count, "errors": self.errors[name]} for name, count in self.requests.items()
        ]
        if revisions and model["revisions"]:
            revisions[0] = model["revisions"][0] | revisions[0]
        return answer | {"models": [model | {"revisions": revisions}]}


@pytest.fixture
def key(direct: Direct) -> ObjectKey:
    return ObjectKey(direct.namespace, "m")


@pytest.fixture
def counting(key: ObjectKey) -> Counting:
    return Counting(key)


@pytest.fixture
async def port(counting: Counting) -> AsyncIterator[int]:
    async with serve(counting.gateway) as port:
        yield port


def status(direct: Direct) -> Json:
    found: Json = direct.model("m").get("status", {})
    return found


def canary(direct: Direct) -> tuple[Any, ...]:
    found = status(direct).get("canary", {})
    return tuple(found.get(name) for name in ("step", "weight", "state"))


def made_of(direct: Direct) -> list[str]:
    pods = [pod for pod in direct.pods("m") if "deletionTimestamp" not in pod["metadata"]]
    return sorted(pod["metadata"]["labels"][REVISION_LABEL] for pod in pods)


def conditions(direct: Direct) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status(direct).get("conditions", ())}


def events(direct: Direct, *reasons: str) -> list[str]:
    return [note for _, reason, note in direct.events("m") if reason in reasons]


def comes_to(direct: Direct, true: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> bool:
    """Return whether a condition becomes true while kubelets work and requests come."""

    def step() -> bool:
        direct.make_ready("m")
        meanwhile()
        return true()

    return until(step, SECONDS)


async def holds(direct: Direct, true: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> bool:
    """Like `comes_to` in another thread, because the operator runs in this one."""
    return await asyncio.to_thread(comes_to, direct, true, meanwhile)


async def begun(direct: Direct, spec: Json = SPEC) -> tuple[str, str]:
    """Create a model that serves and a canary of it with requests; return the stable and the canary's revision."""
    weight = spec["rollout"]["canary"]["steps"][0]["weight"]
    direct.create_model("m", spec)
    assert await holds(direct, lambda: len(made_of(direct)) == 2 and bool(status(direct).get("stableRevision")))
    direct.change_model("m", runtime={"maxModelLen": 64})
    assert await holds(direct, lambda: canary(direct) == (1, weight, "Observing"))
    found = status(direct)["canary"]
    # Surplus pods of the old revision are deleted as soon as those that stay are ready.
    assert await holds(direct, lambda: made_of(direct) == sorted([found["stableRevision"], found["revision"]]))
    assert status(direct)["stableRevision"] == found["stableRevision"]
    return found["stableRevision"], found["revision"]


@pytest.mark.long
async def test_a_canary_with_a_fault_is_taken_back_by_itself(
    server: ApiServer, direct: Direct, counting: Counting, port: int
) -> None:
    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        stable, bad = await begun(direct)

        def serve_badly() -> None:
            counting.count(stable, 9)
            counting.count(bad, 1, errors=1)

        assert await holds(direct, lambda: canary(direct) == (1, 0, "TakenBack"), serve_badly)
        assert await holds(direct, lambda: made_of(direct) == [stable] * 2)
        assert await holds(direct, lambda: conditions(direct).get("Stalled") == ("True", "TakenBack"))
        assert conditions(direct)["Ready"] == ("True", "Ready")
        (note,) = events(direct, "TakenBack")
        assert "requests failed; on stable pods, 0 of" in note
        marked = [r["metadata"].get("annotations", {}).get(TAKEN_BACK) for r in direct.revisions("m")]
        assert [mark is not None for mark in marked] == [False, True]
    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        direct.change_model("m", replicas=3)
        assert await holds(direct, lambda: made_of(direct) == [stable] * 3), "it is not tried again"


@pytest.mark.long
async def test_a_good_canary_goes_on_where_it_was_and_gets_all(
    server: ApiServer, direct: Direct, counting: Counting, port: int
) -> None:
    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        stable, good = await begun(direct)
    counting.count(stable, 1000, errors=500)  # Requests before the step do not count.
    counting.count(good, 1000, errors=1000)

    def serve_well() -> None:
        counting.count(stable, 90)
        counting.count(good, 10)

    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        assert await holds(direct, lambda: canary(direct) == (2, 50, "Observing"), serve_well)
        assert await holds(direct, lambda: "canary" not in status(direct), serve_well)
        assert await holds(direct, lambda: made_of(direct) == [good] * 2)
        assert await holds(direct, lambda: conditions(direct).get("Progressing") == ("False", "Settled"))
    assert status(direct)["stableRevision"] == good
    assert len(events(direct, "Promoted")) == 1
    assert [note.split(" ", 2)[2] for note in events(direct, "Canary")][1:] == [
        "gets 10% of requests (step 1 of 2)",
        "gets 50% of requests (step 2 of 2)",
    ]


@pytest.mark.long
async def test_a_canary_has_its_share_of_as_many_pods_as_are_needed(
    server: ApiServer, direct: Direct, counting: Counting, port: int
) -> None:
    async with running(server, direct.namespace, "--gateways", f"localhost:{port}"):
        stable, bad = await begun(direct, SCALED)
        counting.count(stable, 0)
        counting.count(bad, 0)
        counting.load(running=16, waiting=20)
        assert await holds(direct, lambda: status(direct)["desiredReplicas"] > 3)
        wanted = status(direct)["desiredReplicas"]
        canaries = -(-wanted // 2)
        assert await holds(direct, lambda: made_of(direct) == sorted([bad] * canaries + [stable] * (wanted - canaries)))
        assert canary(direct) == (1, 50, "Observing")

        def serve_badly() -> None:
            counting.count(stable, 5)
            counting.count(bad, 5, errors=5)

        assert await holds(direct, lambda: canary(direct) == (1, 0, "TakenBack"), serve_badly)
        assert await holds(direct, lambda: set(made_of(direct)) == {stable})
        assert await holds(direct, lambda: len(made_of(direct)) == status(direct)["desiredReplicas"] > 3)
    assert direct.model("m")["spec"]["replicas"] == 1, "people's"
