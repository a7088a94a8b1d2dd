"""A group that loses a container, a pod or a node under load heals, and only requests on a lost leader fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import openai
import pytest

from harness import crash, nodes
from harness.daemons import frozen
from harness.figures import Figures, judged, told
from harness.group_faults import watched
from harness.groups import HOLD, Member, apart, live, only_group, wait_formed, wait_restarted
from harness.kube import Kube
from harness.kubectl import kubectl
from harness.load import Outcome, Request, load
from harness.settings import Settings
from harness.waiting import Stopwatch, hold, until

MODEL = "group-healing"
BESIDE, CRASHING, ON_A_LOST_NODE = f"{MODEL}-beside", f"{MODEL}-crashing", f"{MODEL}-node"
PROMPT = "w5 w6 w7 w8 w9 w10"
TOKENS = 32
USERS = 4
PARALLEL = {"tensor": 2, "pods": 2}
WORKER_KILLED, WORKER_DELETED = "a worker's container killed", "a worker's pod deleted"
LEADER_KILLED, LEADER_DELETED = "the leader's container killed", "the leader's pod deleted"
GOAL_SECONDS = {WORKER_KILLED: 8, WORKER_DELETED: 15, LEADER_KILLED: 15, LEADER_DELETED: 25}
OF_THE_LEADER = (LEADER_KILLED, LEADER_DELETED)
UNNOTICED_SECONDS = 5
KILLING_SECONDS = 20
KILL_RANKS = """
import os, signal, sys, time
from contextlib import suppress
killed, end = 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if open(f"/proc/{pid}/comm").read().startswith("plimsoll-rank"):
                os.kill(int(pid), signal.SIGKILL)
                killed += 1
    time.sleep(0.1)
print(killed)
"""
HEALED_WITHIN = 180
NOTICED_WITHIN, REPLACED_WITHIN = 90, 240


@dataclass(frozen=True, slots=True)
class Loss:
    """A lost member. `began`, `ready`, `ended`: seconds since the start of the load; `ready` is the end of the wait for
    a ready group.
    """

    kind: str
    began: float
    ready: float
    ended: float


@pytest.mark.usefixtures("own_cluster")
def test_lost_members_are_replaced_and_no_other_request_fails(
    kube: Kube,
    tiny: dict[str, Any],
    serve: Callable[..., dict[str, Any]],
    async_client: openai.AsyncOpenAI,
    settings: Settings,
    measured: Figures,
) -> None:
    """Pods are deleted with and without a grace period, in turn."""
    tiny["metadata"]["annotations"] = HOLD
    serve(1, parallel=PARALLEL)
    serve(1, BESIDE)
    names = cycle((MODEL, BESIDE))
    losses: list[Loss] = []
    with (
        watched(kube, MODEL) as faults,
        load(async_client, lambda: next(names), users=USERS, prompt=PROMPT, tokens=TOKENS) as outcome,
    ):
        for number in range(10 if settings.long else 2):
            delete = kube.kill_now if number % 2 else kube.delete_pod
            for kind in GOAL_SECONDS:
                hold(3)
                losses.append(_lose(kube, outcome, kind, delete))
    for kind, goal in GOAL_SECONDS.items():
        measured[kind] = judged([_seconds(outcome, loss) for loss in losses if loss.kind == kind], goal)
    failed = [request for request in outcome.requests if request.fault is not None]
    measured |= {"load": outcome.summary(), "failures": [str(request) for request in failed]}
    unexplained = [
        str(request)
        for request in failed
        if request.model != MODEL or not any(_explains(loss, request) for loss in losses)
    ]
    assert unexplained == [], told(measured)
    assert faults == set()
    assert {model: len(texts) for model, texts in outcome.texts.items()} == {MODEL: 1, BESIDE: 1}


def _explains(loss: Loss, request: Request) -> bool:
    """Return whether a loss explains that a request failed. A request that had not begun fails only if the container of
    the only leader was killed, and only until its kubelet has noticed that.
    """
    same_time = request.began < loss.ended and loss.began < request.ended
    if not same_time or loss.kind not in OF_THE_LEADER:
        return False
    return request.status == 200 or (loss.kind == LEADER_KILLED and request.began < loss.began + UNNOTICED_SECONDS)


def _lose(kube: Kube, outcome: Outcome, kind: str, delete: Callable[[str], None]) -> Loss:
    """Lose a member, and wait until its group serves again."""
    before = only_group(kube, MODEL)
    lost = before[0] if kind in OF_THE_LEADER else before[1]
    began = outcome.now()
    if kind in (WORKER_KILLED, LEADER_KILLED):
        crash.kill_container("plimsoll", lost.uid)
        wait_restarted(kube, MODEL, lost)
    else:
        delete(lost.name)
        _wait_replaced(kube, before if kind in OF_THE_LEADER else (lost,))
    ready = outcome.now()
    until("a token", lambda: outcome.tokens[MODEL][-1:] > [ready], timeout=HEALED_WITHIN)
    ended = outcome.now()
    wait_formed(kube, MODEL)
    after = only_group(kube, MODEL)
    assert kind == LEADER_DELETED or after[0].group == before[0].group  # without its leader a group is made anew
    kept = {member.uid for member in before} & {member.uid for member in after}
    expected = {LEADER_DELETED: set(), WORKER_DELETED: {before[0].uid}}
    assert kept == expected.get(kind, {member.uid for member in before}), kind
    return Loss(kind, began, ready, ended)


def _wait_replaced(kube: Kube, gone: tuple[Member, ...]) -> None:
    """Wait until the group is ready without the members in `gone`."""

    def look() -> bool:
        ready = {member.uid for member in live(kube, MODEL) if member.ready}
        return len(ready) == PARALLEL["pods"] and ready.isdisjoint(member.uid for member in gone)

    until("other members", look, timeout=HEALED_WITHIN, state=lambda: kube.describe(MODEL))


def _seconds(outcome: Outcome, loss: Loss) -> float:
    """Return the seconds until the group was ready, for a killed leader, else until tokens came again."""
    if loss.kind == LEADER_KILLED:
        return round(loss.ready - loss.began, 1)
    return outcome.resumed_after(MODEL, loss.began, loss.ended)


def test_the_status_has_the_last_words_of_a_rank(kube: Kube, serve: Callable[..., dict[str, Any]]) -> None:
    """A rank that is killed once is back before its leader counts as not ready, so this one is killed at each start."""
    serve(1, CRASHING, parallel=PARALLEL)
    [_, worker] = only_group(kube, CRASHING)
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kube.execute, worker.name, "python3", "-c", KILL_RANKS, str(KILLING_SECONDS))
        until(
            "the rank and its signal",
            lambda: "rank 1 was killed by signal 9" in _described(kube, CRASHING),
            timeout=KILLING_SECONDS,
            state=lambda: _described(kube, CRASHING),
        )
        assert int(killing.result()) > 1
    wait_formed(kube, CRASHING)
    assert "signal" not in json.dumps(kube.model(CRASHING)["status"])


def _described(kube: Kube, name: str) -> str:
    return kubectl("describe", "mdep", name, "--namespace", kube.namespace)


@pytest.mark.usefixtures("own_cluster")
def test_a_node_that_is_lost_and_comes_back_leaves_nothing_twice(
    kube: Kube,
    tiny: dict[str, Any],
    serve: Callable[..., dict[str, Any]],
    async_client: openai.AsyncOpenAI,
    two_nodes: tuple[str, str],
    settings: Settings,
    measured: Figures,
) -> None:
    """It has the leader of one group and the worker of another. Its kubelet and containerd stop, but its containers
    continue to run.
    """
    if not settings.long:
        pytest.skip("a lost node takes minutes, so it runs at full length only")
    kept, lost = two_nodes
    tiny["metadata"]["annotations"] = HOLD
    serve(2, ON_A_LOST_NODE, parallel=PARALLEL, template=apart(required=False))
    members = live(kube, ON_A_LOST_NODE)
    assert sorted(member.index for member in members if member.node == lost) == [0, 1], members
    with (
        watched(kube, ON_A_LOST_NODE) as faults,
        load(async_client, ON_A_LOST_NODE, users=USERS, prompt=PROMPT, tokens=TOKENS) as outcome,
    ):
        hold(3)
        with frozen(lost, "kubelet"), frozen(lost, "containerd"):
            since = Stopwatch()
            until(f"{lost} not ready", lambda: not nodes.is_ready(lost), timeout=NOTICED_WITHIN)
            measured["not_ready_after_seconds"] = since.seconds
            until(
                f"two groups on {kept}",
                lambda: [member.node for member in live(kube, ON_A_LOST_NODE) if member.ready] == [kept] * 4,
                timeout=REPLACED_WITHIN,
                state=lambda: kube.describe(ON_A_LOST_NODE),
            )
            measured["replaced_after_seconds"] = since.seconds
            hold(60)
        nodes.wait_ready(lost)
        wait_formed(kube, ON_A_LOST_NODE, 2)
        hold(20)
        wait_formed(kube, ON_A_LOST_NODE, 2)
    measured["load"] = outcome.summary()
    assert outcome.failures == [], told(measured)
    assert faults == set()
    assert len(outcome.texts[ON_A_LOST_NODE]) == 1
