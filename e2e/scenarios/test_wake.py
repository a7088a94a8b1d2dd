"""Requests for sleeping models through the ingress: time until their first token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import openai
import pytest

from harness import nodes, pool
from harness.figures import Figures, judged, told
from harness.host_api import HostApi
from harness.kube import Kube
from harness.release import Release
from harness.settings import Settings
from harness.tiny_model import SMALL, write_tiny_model
from harness.volume import CLAIM, provide_volume
from harness.waiting import hold

PROMPT = "w5 w6 w7 w8 w9 w10"
TOKENS = 4
STANDBY_SECONDS = 12
"""Time after a wake until the host has started the next standby process."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and the goal for the 95th percentile of its time to first token on an idle machine."""

    name: str
    source: str
    goal_seconds: float


CASES = [Case("small", f"pvc://{CLAIM}/small", 1.0), Case("demo", "demo://gemma-3-270m", 2.0)]


def test_of_models_that_sleep_in_memory(
    kube: Kube, release: Release, client: openai.OpenAI, settings: Settings, measured: Figures
) -> None:
    if not settings.shared_files:
        pytest.skip("its models are files that all nodes share, which only this machine's own cluster has")
    folder = Path(settings.shared_files)
    write_tiny_model(folder / "small", shape=SMALL)
    provide_volume(kube, folder)
    shared = pool.pool(1, memory="4Gi", sleepers="1Gi")
    shared["spec"]["template"] |= nodes.staying(bool(settings.own_cluster))
    kube.apply(shared)
    runtime = {"dtype": "bfloat16", "kvMemory": "64MiB", "maxModelLen": 1024}
    for case in CASES:
        kube.apply(pool.model(case.name, case.source, runtime=runtime))
    for case in CASES:
        kube.wait_condition(case.name, "Ready", "True")
    [host] = pool.wait_replicas(kube, 1)
    api = HostApi(kube, release.namespace, pool.NAME)
    rounds = 30 if settings.long else 3
    for case in CASES:
        text, _ = _ask(client, case.name)
        before = api.entry(host, case.name)["wakes"]
        seconds: list[float] = []
        for _ in range(rounds):
            api.sleep(host, case.name)
            hold(STANDBY_SECONDS)
            again, first = _ask(client, case.name)
            assert again == text, told(measured)
            seconds.append(first)
        assert api.entry(host, case.name)["wakes"] - before == rounds, "it was not asleep, or not in memory"
        measured[case.name] = judged(seconds, case.goal_seconds)


def _ask(client: openai.OpenAI, model: str) -> tuple[str, float]:
    """Return the output, and the seconds from the request to the first token."""
    began, first, text = monotonic(), None, ""
    stream = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=TOKENS, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    for chunk in stream:
        for choice in chunk.choices:
            first = first or monotonic() - began
            text += choice.text
    assert first is not None
    return text, first
