"""A node stops answering while users ask: nobody notices, the status names it, and its replica is made elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from harness import nodes
from harness.daemons import frozen
from harness.figures import Figures, told
from harness.kube import Kube
from harness.load import load
from harness.settings import Settings
from harness.waiting import Stopwatch, hold, until

PROMPT = "w5 w6 w7 w8 w9 w10"
NOTICED_WITHIN = 90
REPLACED_WITHIN = 240


@pytest.mark.usefixtures("own_cluster")
def test_a_lost_node_costs_no_request_and_is_named(
    kube: Kube,
    serve: Callable[..., dict[str, Any]],
    async_client: openai.AsyncOpenAI,
    two_nodes: tuple[str, str],
    settings: Settings,
    measured: Figures,
) -> None:
    kept, lost = two_nodes
    serve(2)
    assert sorted(kube.nodes_of("tiny")) == [kept, lost]
    with load(async_client, "tiny", users=3, prompt=PROMPT, tokens=16) as outcome:
        hold(3)
        with frozen(lost, "kubelet"):
            since = Stopwatch()
            until(f"{lost} not ready", lambda: not nodes.is_ready(lost), timeout=NOTICED_WITHIN)
            measured["not_ready_after_seconds"] = since.seconds
            until(
                f"a condition that names {lost}",
                lambda: any(lost in c["message"] for c in kube.conditions()["tiny"].values()),
                timeout=NOTICED_WITHIN,
                state=lambda: kube.describe("tiny"),
            )
            measured["named_after_seconds"] = since.seconds
            until(
                f"two replicas on {kept}",
                lambda: kube.nodes_of("tiny") == [kept, kept],
                timeout=REPLACED_WITHIN,
                state=lambda: kube.describe("tiny"),
            )
            measured["replaced_after_seconds"] = since.seconds
            hold(30 if settings.long else 5)
        nodes.wait_ready(lost)
        kube.wait_settled("tiny", 2, timeout=120)
    measured["load"] = outcome.summary()
    assert outcome.failures == [], told(measured)
    assert outcome.answered > 100
