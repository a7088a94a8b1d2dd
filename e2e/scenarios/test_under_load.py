"""Scaling, rollouts and killed pods under load: no request fails, except those on killed pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from harness.kube import OWNED, Kube, fresh_namespace
from harness.load import load
from harness.waiting import until

MODEL = "loaded"
PROMPT = "w5 w6 w7 w8 w9 w10"
TOKENS = 24
USERS = 3


@pytest.fixture(scope="module")
def kube() -> Iterator[Kube]:
    """One namespace for all tests."""
    with fresh_namespace() as kube:
        yield kube


def test_scaling_fails_no_request(kube: Kube, serving: dict[str, Any], async_client: openai.AsyncOpenAI) -> None:
    with load(async_client, MODEL, users=USERS, prompt=PROMPT, tokens=TOKENS) as outcome:
        kube.scale(MODEL, 2)
        kube.wait_settled(MODEL, 2)
        kube.scale(MODEL, 1)
        kube.wait_settled(MODEL, 1)
    assert outcome.failures == []
    assert outcome.answered > USERS
    assert len(outcome.texts[MODEL]) == 1


def test_a_changed_spec_rolls_without_a_failed_request(
    kube: Kube, serving: dict[str, Any], async_client: openai.AsyncOpenAI
) -> None:
    before = kube.ready_pods(MODEL)
    with load(async_client, MODEL, users=USERS, prompt=PROMPT, tokens=TOKENS) as outcome:
        serving["spec"]["runtime"] = serving["spec"]["runtime"] | {"maxSequences": 32}
        kube.apply(serving)
        until("new pods", lambda: kube.ready_pods(MODEL) not in ([], before), timeout=120)
        kube.wait_settled(MODEL, 1)
    assert set(kube.ready_pods(MODEL)).isdisjoint(before)
    assert outcome.failures == []
    assert outcome.answered > USERS


def test_a_killed_pod_is_replaced(kube: Kube, serving: dict[str, Any], async_client: openai.AsyncOpenAI) -> None:
    """Requests in progress on the killed pod may fail; all others are answered by the second replica."""
    kube.scale(MODEL, 2)
    kube.wait_settled(MODEL, 2)
    victim = kube.ready_pods(MODEL)[0]
    with load(async_client, MODEL, users=USERS, prompt=PROMPT, tokens=TOKENS) as outcome:
        kube.kill_now(victim)
        until("the pod gone", lambda: victim not in [p["metadata"]["name"] for p in kube.pods(MODEL)], timeout=60)
        kube.wait_settled(MODEL, 2)
    assert len(outcome.failures) <= USERS, outcome.failures
    assert outcome.answered > USERS
    assert victim not in kube.ready_pods(MODEL)


def test_deleting_removes_everything(kube: Kube, serving: dict[str, Any]) -> None:
    kube.delete_model(MODEL)
    until("no pods left", lambda: not kube.pods(MODEL), timeout=90, state=lambda: kube.pods(MODEL))
    until("no Service left", lambda: not kube.services(), timeout=30, state=kube.services)
    assert kube.names_with_label(OWNED) == []
