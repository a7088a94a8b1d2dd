"""Operator, gateways and runtimes are rolled to another image under load, and back: no request fails."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import openai
import pytest

from harness import helm, pool
from harness.figures import Figures, told
from harness.kube import Kube
from harness.load import load
from harness.release import Release
from harness.settings import Settings
from harness.waiting import Stopwatch, hold, until

MODEL = "upgraded"
PROMPT = "w5 w6 w7 w8 w9 w10"
POOLED = pool.names(MODEL, 2)
ROLLED_WITHIN = 600


def test_operator_gateway_and_runtime_roll_and_no_request_fails(
    kube: Kube,
    release: Release,
    serve: Callable[..., dict[str, Any]],
    async_client: openai.AsyncOpenAI,
    settings: Settings,
    measured: Figures,
) -> None:
    """The new images are the same ones named by digest, which replaces every pod."""
    if not settings.shared_files:
        pytest.skip("its models are files that all nodes share, which only this machine's own cluster has")
    serve(2)
    pool.start(kube, Path(settings.shared_files), POOLED)
    images = {
        "image.digest": release.image_digest("operator"),
        "runtime.image.digest": kube.image_digest(kube.ready_pods(MODEL)[0]),
    }
    names = cycle([MODEL, *POOLED])
    least = 2000 if settings.long else 300
    with load(async_client, lambda: next(names), users=3, prompt=PROMPT, tokens=16) as outcome:
        hold(3)
        before, since = _pods(kube, release), Stopwatch()
        with helm.with_values(settings.release, release.namespace, *(f"{k}={v}" for k, v in images.items())):
            measured["released_after_seconds"] = since.seconds
            _wait_rolled(kube, release, before)
            measured["rolled_after_seconds"] = since.seconds
            measured["requests_of_the_upgrade"] = len(outcome.requests)
            before, since = _pods(kube, release), Stopwatch()
        _wait_rolled(kube, release, before)
        measured["rolled_back_after_seconds"] = since.seconds
        until(f"{least} requests", lambda: len(outcome.requests) >= least, timeout=ROLLED_WITHIN)
    measured["load"] = outcome.summary()
    assert outcome.failures == [], told(measured)
    assert {name: len(texts) for name, texts in outcome.texts.items()} == dict.fromkeys([MODEL, *POOLED], 1)


def _pods(kube: Kube, release: Release) -> set[str]:
    """Return the names of the ready pods that an upgrade replaces: operator, gateways, the model's pods, hosts."""
    ours = [*release.ready_pods("operator"), *release.ready_pods("gateway")]
    return {*ours, *kube.ready_pods(MODEL), *pool.reporting(kube)}


def _wait_rolled(kube: Kube, release: Release, before: set[str]) -> None:
    """Wait until all pods in `before` are replaced, and the models are ready and settled."""

    def rolled() -> bool:
        now = _pods(kube, release)
        return now.isdisjoint(before) and len(now) == len(before) and len(pool.hosts(kube)) == pool.PODS

    until("every pod replaced", rolled, timeout=ROLLED_WITHIN, state=lambda: (before, _pods(kube, release)))
    kube.wait_settled(MODEL, 2)
    for name in POOLED:
        kube.wait_condition(name, "Ready", "True")
