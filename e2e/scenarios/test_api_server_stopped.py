"""The API server stops answering for a while: requests are served, and the operator continues afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from harness.daemons import HUB, frozen
from harness.figures import Figures, told
from harness.kube import Kube
from harness.load import load
from harness.settings import Settings
from harness.waiting import Stopwatch, hold

MODEL = "api-server-stopped"
PROMPT = "w5 w6 w7 w8 w9 w10"
ACTS_WITHIN = 60


@pytest.mark.usefixtures("own_cluster", "two_nodes")
def test_requests_are_answered_meanwhile_and_the_operator_acts_afterwards(
    kube: Kube,
    serve: Callable[..., dict[str, Any]],
    async_client: openai.AsyncOpenAI,
    settings: Settings,
    measured: Figures,
) -> None:
    stopped_for = 60 if settings.long else 30
    serve(2)
    with load(async_client, MODEL, users=3, prompt=PROMPT, tokens=16) as outcome:
        hold(3)
        with frozen(HUB, "kube-apiserver"):
            hold(stopped_for)
        since = Stopwatch()
        kube.scale(MODEL, 1)
        kube.wait_settled(MODEL, 1, timeout=ACTS_WITHIN)
        measured["settled_after_seconds"] = since.seconds
        hold(5)
    measured |= {"stopped_for_seconds": stopped_for, "load": outcome.summary()}
    assert outcome.failures == [], told(measured)
    assert outcome.answered > stopped_for
