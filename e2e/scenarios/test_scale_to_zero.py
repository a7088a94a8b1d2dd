"""A model without requests has no pods; the next request is answered, and no other request fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai

from harness import nodes
from harness.figures import Figures, told
from harness.kube import Kube
from harness.load import load
from harness.settings import Settings
from harness.waiting import Stopwatch, hold, until

MODEL = "to-zero"
PROMPT = "w5 w6 w7 w8 w9 w10"
SCALING = {"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 10, "scaleDownSeconds": 10}
TO_ZERO_WITHIN = 180


def test_to_zero_and_back_no_request_fails(
    kube: Kube,
    tiny: dict[str, Any],
    new_client: Callable[[], openai.AsyncOpenAI],
    settings: Settings,
    measured: Figures,
) -> None:
    tiny["spec"] |= {"scaling": SCALING, "template": nodes.staying(bool(settings.own_cluster))}
    kube.apply(tiny)
    kube.wait_condition(MODEL, "Ready", "True")
    rounds: list[dict[str, Any]] = []
    for _ in range(5 if settings.long else 1):
        since = Stopwatch()
        until(
            "no pods without requests",
            lambda: not kube.pods(MODEL),
            timeout=TO_ZERO_WITHIN,
            state=lambda: kube.describe(MODEL),
        )
        gone = since.seconds
        status = kube.model(MODEL)["status"]
        assert status["desiredReplicas"] == 0, kube.describe(MODEL)
        with load(new_client(), MODEL, users=3, prompt=PROMPT, tokens=8) as outcome:
            until("an answer", lambda: outcome.answered > 0, timeout=300, state=lambda: kube.describe(MODEL))
            hold(5)
        first = min(outcome.requests, key=lambda request: request.began + request.seconds)
        rounds.append({"gone_after_seconds": gone, "first_answer_seconds": first.seconds, "load": outcome.summary()})
        assert outcome.failures == [], told({"rounds": rounds})
        assert len(outcome.texts[MODEL]) == 1
    measured["rounds"] = rounds
