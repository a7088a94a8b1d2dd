"""`kubectl drain` while users ask: nobody notices, also where the only replica has to move first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai

from harness.figures import Figures, told
from harness.kube import Kube
from harness.kubectl import cordoned, drained
from harness.load import load
from harness.waiting import Stopwatch, hold

MODEL = "drained"
PROMPT = "w5 w6 w7 w8 w9 w10"
DRAINED_WITHIN = 300


def test_with_two_replicas(
    kube: Kube,
    serve: Callable[..., dict[str, Any]],
    async_client: openai.AsyncOpenAI,
    two_nodes: tuple[str, str],
    measured: Figures,
) -> None:
    serve(2)
    assert sorted(kube.nodes_of(MODEL)) == list(two_nodes)
    _, leaves = two_nodes
    _drain_under_load(kube, async_client, leaves, measured, replicas=2)


def test_with_one_replica(
    kube: Kube,
    serve: Callable[..., dict[str, Any]],
    async_client: openai.AsyncOpenAI,
    two_nodes: tuple[str, str],
    measured: Figures,
) -> None:
    stays, leaves = two_nodes
    with cordoned(stays):
        serve(1)
    assert kube.nodes_of(MODEL) == [leaves]
    _drain_under_load(kube, async_client, leaves, measured, replicas=1)


def _drain_under_load(kube: Kube, client: openai.AsyncOpenAI, leaves: str, measured: Figures, *, replicas: int) -> None:
    """Drain the node to its end; every replica is elsewhere then, and no request has failed."""
    with load(client, MODEL, users=3, prompt=PROMPT, tokens=16) as outcome:
        hold(3)
        since = Stopwatch()
        with drained(leaves, timeout=DRAINED_WITHIN):
            measured["drained_after_seconds"] = since.seconds
            kube.wait_settled(MODEL, replicas, timeout=DRAINED_WITHIN)
            measured["settled_after_seconds"] = since.seconds
            assert leaves not in kube.nodes_of(MODEL)
            hold(3)
    measured["load"] = outcome.summary()
    assert outcome.failures == [], told(measured)
    assert outcome.answered > 20
