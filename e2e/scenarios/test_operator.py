"""The operator may be killed at any time, run twice, or not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from harness import lease
from harness.kube import Kube, fresh_namespace
from harness.load import load
from harness.release import Release
from harness.waiting import until

MODEL = "operated"
ONCE = f"{MODEL}-once"
PROMPT = "w5 w6 w7 w8 w9 w10"


@pytest.fixture(scope="module")
def kube() -> Iterator[Kube]:
    """One namespace for all tests."""
    with fresh_namespace() as kube:
        yield kube


def test_killed_in_the_middle_of_a_roll_the_next_one_finishes(
    kube: Kube, release: Release, serving: dict[str, Any], async_client: openai.AsyncOpenAI
) -> None:
    before = kube.ready_pods(MODEL)
    with load(async_client, MODEL, users=2, prompt=PROMPT, tokens=16) as outcome:
        serving["spec"]["runtime"] = serving["spec"]["runtime"] | {"maxSequences": 48}
        kube.apply(serving)
        until("the surge pod", lambda: len(kube.pods(MODEL)) == 2, timeout=60)
        for pod in release.component_pods("operator"):
            release.kill_now(pod)
        until("the new pod alone", lambda: kube.ready_pods(MODEL) not in ([], before), timeout=180)
        kube.wait_settled(MODEL, 1)
    assert set(kube.ready_pods(MODEL)).isdisjoint(before)
    assert outcome.failures == []


def test_two_operators_never_act_at_once(kube: Kube, release: Release, tiny: dict[str, Any]) -> None:
    release.scale_component("operator", 2)
    try:
        until("two operators", lambda: len(release.component_pods("operator")) == 2, timeout=60)
        tiny["metadata"]["name"] = ONCE
        kube.apply(tiny)
        kube.wait_condition(ONCE, "Ready", "True")
        kube.wait_settled(ONCE, 1)
        created = [text for _, reason, text in kube.events(ONCE) if reason == "PodCreated"]
        assert len(created) == 1, created
        assert lease.holder(release.namespace, "plimsoll-operator") in release.component_pods("operator")
    finally:
        release.scale_component("operator", 1)
        until("one operator", lambda: len(release.component_pods("operator")) == 1, timeout=60)


def test_serving_goes_on_without_an_operator(
    kube: Kube, release: Release, serving: dict[str, Any], client: Any
) -> None:
    release.scale_component("operator", 0)
    try:
        until("no operator", lambda: not release.component_pods("operator"), timeout=60)
        for _ in range(5):
            answer = client.completions.create(
                model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
            )
            assert answer.usage.completion_tokens == 8
        kube.scale(MODEL, 2)
    finally:
        release.scale_component("operator", 1)
    kube.wait_settled(MODEL, 2)
