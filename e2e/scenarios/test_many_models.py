"""A thousand ModelDeployments: all settle, another model is served at the same time, and settled ones cause no requests
to the API server.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

from harness import api_cost
from harness.figures import Figures, told
from harness.kube import Kube
from harness.load import load
from harness.release import Release
from harness.settings import Settings
from harness.waiting import Stopwatch, hold, until

MODEL = "among-many"
PROMPT = "w5 w6 w7 w8 w9 w10"
NOWHERE = {"e2e.plimsoll.dev/nowhere": "yes"}
REQUESTS_PER_OBJECT_AND_MINUTE = 0.1
LISTS_PER_MINUTE = 10
"""Lists of all kinds by three processes: each lists again after its watch expires."""


def test_all_settle_and_then_cost_nothing(
    kube: Kube,
    release: Release,
    serve: Callable[..., dict[str, Any]],
    async_client: openai.AsyncOpenAI,
    settings: Settings,
    measured: Figures,
) -> None:
    count, window = (1000, 180) if settings.long else (120, 75)
    tiny = serve(1)
    before = release.restarts("operator") | release.restarts("gateway")
    accounts = [release.account("operator"), release.account("gateway")]
    with (
        api_cost.counted(kube.namespace, release.namespace, accounts) as counts,
        load(async_client, MODEL, users=1, prompt=PROMPT, tokens=8, pause=0.5) as outcome,
    ):
        since = Stopwatch()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(kube.apply, (_homeless(tiny, number) for number in range(count))))
        measured["created_after_seconds"] = since.seconds
        until(
            f"{count} settled",
            lambda: sum(_settled(conditions) for conditions in kube.conditions().values()) == count,
            timeout=900,
            state=lambda: f"{sum(_settled(c) for c in kube.conditions().values())} of {count} have settled",
        )
        measured["settled_after_seconds"] = since.seconds
        hold(20)
        began, to_settle = Stopwatch(), counts()
        hold(window)
        asked, minutes = counts(), began.seconds / 60
    per_minute = {kind: round((asked[kind] - number) / minutes, 1) for kind, number in to_settle.items()}
    measured |= {
        "objects": count,
        "requests_to_settle": dict(to_settle),
        "requests_per_minute_when_settled": per_minute,
        "memory_peaks_mib": release.memory_peaks("operator") | release.memory_peaks("gateway"),
        "load": outcome.summary(),
    }
    assert outcome.failures == [], told(measured)
    assert release.restarts("operator") | release.restarts("gateway") == before
    assert to_settle["writes"] >= count, f"each has a status, so not all was counted: {told(measured)}"
    allowed = LISTS_PER_MINUTE + REQUESTS_PER_OBJECT_AND_MINUTE * count
    assert sum(per_minute.values()) < allowed, told(measured)


def _homeless(tiny: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a ModelDeployment whose pods fit on no node."""
    manifest = copy.deepcopy(tiny)
    manifest["metadata"] = {"name": f"{MODEL}-{number}"}
    manifest["spec"] |= {"template": {"nodeSelector": NOWHERE}}
    return manifest


def _settled(conditions: dict[str, dict[str, Any]]) -> bool:
    """Return whether the status says that no node fits."""
    return conditions.get("Placed", {}).get("reason") == "Unschedulable"
