"""Abusive requests through the ingress at the chart's default limits: the gateway survives, and other requests are
answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import openai

from harness import abuse
from harness.figures import Figures, told
from harness.load import load
from harness.release import Release
from harness.settings import Settings
from harness.waiting import Stopwatch, until

MODEL = "abused"
PROMPT = "w5 w6 w7 w8 w9 w10"
PHASES = (
    {"arrays_in_arrays": 12},
    {"deep_arrays": 12},
    {"token_ids": 12},
    {"many_keys": 12},
    {"cancelled_streams": 900},
    {"half_bodies": 60, "half_headers": 400},
)
"""Kinds of abuse with their number of requests, one phase after the other. The last two mostly wait."""
TIMES_LONG = 4


def test_the_gateway_lives_and_others_are_answered(
    release: Release,
    serve: Callable[..., dict[str, Any]],
    async_client: openai.AsyncOpenAI,
    settings: Settings,
    measured: Figures,
) -> None:
    serve(1)
    ingress = httpx.URL(settings.url)
    target = abuse.Target(ingress.host, ingress.port or 80, settings.host, MODEL)
    before = release.restarts("gateway")
    assert len(before) == 2
    phases: dict[str, Any] = {}
    with load(async_client, MODEL, users=2, prompt=PROMPT, tokens=8) as outcome:
        for phase in PHASES:
            sent, failed_before = Stopwatch(), len(outcome.failures)
            targets = dict.fromkeys(phase, target)
            if (
                "half_headers" in phase and settings.own_cluster
            ):  # the ingress would not forward them, so send them to the Service
                targets["half_headers"] = abuse.Target(*release.service_address("gateway"), settings.host, MODEL)
            times = TIMES_LONG if settings.long else 1
            ended = asyncio.run(_abused({name: (targets[name], count * times) for name, count in phase.items()}))
            until("two gateways ready", lambda: len(release.ready_pods("gateway")) == 2, timeout=120)
            phases[", ".join(phase)] = {
                "ended": ended,
                "seconds": sent.seconds,
                "restarts": release.restarts("gateway"),
                "memory_peaks_mib": release.memory_peaks("gateway"),
                "failed_meanwhile": len(outcome.failures) - failed_before,
            }
    measured |= {"phases": phases, "load": outcome.summary()}
    assert release.restarts("gateway") == before, told(measured)
    assert outcome.failures == [], told(measured)
    assert outcome.answered > 50
    if settings.own_cluster:
        assert abuse.HELD not in ended["half_headers"], told(measured)


async def _abused(wanted: dict[str, tuple[abuse.Target, int]]) -> dict[str, dict[str, int]]:
    """Send all these requests at once, and return how those of each kind ended."""
    found = await asyncio.gather(*(abuse.ALL[name](where, count) for name, (where, count) in wanted.items()))
    return {name: dict(ended) for name, ended in zip(wanted, found, strict=True)}
