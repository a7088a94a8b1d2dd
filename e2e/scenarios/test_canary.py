"""A changed spec first gets a share of the requests: a faulty one is rolled back, a good one is promoted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from harness.figures import Figures, told
from harness.kube import Kube, Object
from harness.load import load
from harness.settings import Settings
from harness.tiny_model import write_tiny_model
from harness.volume import CLAIM
from harness.waiting import hold, until

MODEL = "canary"
PROMPT = "w5 w6 w7 w8 w9 w10"
REVISION = "plimsoll.dev/revision"
CANARY = {"steps": [{"weight": 50, "pauseSeconds": 10}], "minRequests": 20, "maxLatencyIncrease": "1000%"}
"""Only failed requests count; latency is not judged, because the machine may be busy."""
DECIDED_WITHIN = 400


def test_a_faulty_one_is_taken_back_and_a_good_one_promoted(
    kube: Kube,
    serve: Callable[..., dict[str, Any]],
    new_client: Callable[[], openai.AsyncOpenAI],
    settings: Settings,
    measured: Figures,
) -> None:
    if not settings.shared_files:
        pytest.skip("its models are files that all nodes share, which only this machine's own cluster has")
    write_tiny_model(Path(settings.shared_files) / "broken-llama", broken=True)
    write_tiny_model(Path(settings.shared_files) / "other-llama", seed=7)
    model = serve(replicas=2, rollout={"canary": CANARY})
    described = partial(kube.describe, MODEL)
    stable = _revisions(kube)
    assert len(stable) == 1

    model["spec"]["model"]["source"] = f"pvc://{CLAIM}/broken-llama"
    kube.apply(model)
    with load(new_client(), MODEL, users=4, prompt=PROMPT, tokens=8) as outcome:
        until("it is taken back", lambda: _state(kube) == "TakenBack", timeout=DECIDED_WITHIN, state=described)
        until("its pods are gone", lambda: _revisions(kube) == stable, timeout=120, state=described)
        quiet = outcome.now()
        hold(5)
    measured["faulty"] = outcome.summary()
    assert outcome.failures, "no request was sent to the faulty revision, so the test shows nothing"
    assert len(outcome.failures) < outcome.answered, told(measured)
    late = [str(request) for request in outcome.requests if request.began > quiet and request.fault is not None]
    assert late == []
    stalled = kube.condition(MODEL, "Stalled")
    assert stalled is not None
    assert stalled["reason"] == "TakenBack"
    assert "requests failed" in stalled["message"]
    assert kube.wait_condition(MODEL, "Ready", "True", timeout=1)

    model["spec"]["model"]["source"] = f"pvc://{CLAIM}/other-llama"
    kube.apply(model)
    with load(new_client(), MODEL, users=4, prompt=PROMPT, tokens=8) as outcome:
        kube.wait_settled(MODEL, 2, timeout=DECIDED_WITHIN)
        hold(3)
    measured["good"] = outcome.summary()
    assert outcome.failures == []
    assert len(outcome.texts[MODEL]) == 2, "both revisions answered, each with its own text"
    assert _revisions(kube).isdisjoint(stable)


def _revisions(kube: Kube) -> set[str]:
    return {pod["metadata"]["labels"][REVISION] for pod in kube.pods(MODEL)}


def _state(kube: Kube) -> str:
    canary: Object = kube.model(MODEL).get("status", {}).get("canary") or {}
    return str(canary.get("state", ""))
