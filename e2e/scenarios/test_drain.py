"""`kubectl drain` under load: no request fails, even if the only replica has to move."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import openai

from harness.figures import Figures, told
from harness.kube import Kube
from harness.kubectl import cordoned, drained
from harness.load import load
from harness.waiting import Stopwatch, hold

MODEL = "drained"
ALONE = f"{MODEL}-alone"
REPLICAS = {MODEL: 2, ALONE: 1}
PROMPT = "w5 w6 w7 w8 w9 w10"
DRAINED_WITHIN = 300


def test_with_two_replicas_and_with_one(
    kube: Kube,
    serve: Callable[..., dict[str, Any]],
    async_client: openai.AsyncOpenAI,
    two_nodes: tuple[str, str],
    measured: Figures,
) -> None:
    """One model has a replica on each node, another its only replica on the drained node."""
    stays, leaves = two_nodes
    with cordoned(stays):
        serve(REPLICAS[ALONE], ALONE)
    serve(REPLICAS[MODEL])
    assert kube.nodes_of(ALONE) == [leaves]
    assert sorted(kube.nodes_of(MODEL)) == [stays, leaves]
    names = cycle(REPLICAS)
    with load(async_client, lambda: next(names), users=4, prompt=PROMPT, tokens=16) as outcome:
        hold(3)
        since = Stopwatch()
        with drained(leaves, timeout=DRAINED_WITHIN):
            measured["drained_after_seconds"] = since.seconds
            for name, replicas in REPLICAS.items():
                kube.wait_settled(name, replicas, timeout=DRAINED_WITHIN)
                assert leaves not in kube.nodes_of(name)
            measured["settled_after_seconds"] = since.seconds
            hold(3)
    measured["load"] = outcome.summary()
    assert outcome.failures == [], told(measured)
    answered = {name: sum(r.model == name for r in outcome.requests) for name in REPLICAS}
    assert all(number > 20 for number in answered.values()), answered
