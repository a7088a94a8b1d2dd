"""Replicas fill what the nodes have, as is usual with GPUs: a changed spec still reaches all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from harness import nodes
from harness.figures import Figures, told
from harness.kube import Kube
from harness.load import load
from harness.waiting import Stopwatch, until

MODEL = "full"
PROMPT = "w5 w6 w7 w8 w9 w10"
SEAT = "e2e.plimsoll.dev/seat"
ROLLED_WITHIN = 300


@pytest.fixture
def seats(two_nodes: tuple[str, str]) -> Iterator[int]:
    """As many seats as nodes, one on each."""
    with nodes.with_resource(SEAT, 1) as found:
        assert set(found) == set(two_nodes)
        yield len(found)


@pytest.mark.parametrize("rollout", [{}, {"maxSurge": 0, "maxUnavailable": 1}], ids=["as it comes", "as it is told"])
def test_a_roll_ends_where_there_is_no_room_for_one_more(
    kube: Kube,
    seats: int,
    serve: Callable[..., dict[str, Any]],
    async_client: openai.AsyncOpenAI,
    measured: Figures,
    rollout: dict[str, Any],
) -> None:
    resources = {"cpu": "200m", "memory": "1500Mi", "accelerator": {"resource": SEAT}}
    tiny = serve(seats, resources=resources, rollout=rollout)
    before = set(kube.ready_pods(MODEL))
    with load(async_client, MODEL, users=2, prompt=PROMPT, tokens=16) as outcome:
        tiny["spec"]["runtime"] = tiny["spec"]["runtime"] | {"maxSequences": 32}
        since = Stopwatch()
        kube.apply(tiny)
        until("a new pod", lambda: set(kube.ready_pods(MODEL)) - before, timeout=ROLLED_WITHIN)
        kube.wait_settled(MODEL, seats, timeout=ROLLED_WITHIN)
        measured["rolled_after_seconds"] = since.seconds
    measured["load"] = outcome.summary()
    assert before.isdisjoint(kube.ready_pods(MODEL))
    assert outcome.failures == [], told(measured)
    assert outcome.answered > 10
