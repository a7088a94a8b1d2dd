"""The operator is killed repeatedly while models come, go and change: the final state equals that of an undisturbed
run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from harness import pool
from harness.figures import Figures, told
from harness.kube import Kube, Object, fresh_namespace
from harness.operator_kill import kill_operator, wait_leader
from harness.release import Release
from harness.settings import Settings
from harness.tiny_model import RUNTIME
from harness.waiting import Stopwatch, hold, until

MODEL = "killed"
PROMPT = "w5 w6 w7 w8 w9 w10"
SETTLED_WITHIN = 300
POOLED = pool.names(MODEL, 5)
OWN = f"{MODEL}-own"
SETTLED_HOLD = 12

Step = tuple[str, Object | str]
"""A change by a user: applies an object, or deletes a model of this name."""


def churn(steps: int, tiny: Object, seed: int = 0) -> Iterator[Step]:
    """Yield steps: models come, go and change, in the pool and in dedicated pods; the pool gains and loses a pod."""
    draw = random.Random(seed)
    yield "apply", pool.pool(2)
    for name in POOLED:
        yield "apply", pool.model(name)
    for _ in range(steps):
        kind = draw.choices(["come", "go", "change", "own", "pool"], [3, 2, 3, 2, 1])[0]
        name = draw.choice(POOLED)
        runtime = RUNTIME | {"maxModelLen": draw.choice([512, 768, 1024])}
        if kind == "go":
            yield "delete", draw.choice([name, OWN])
        elif kind == "pool":
            yield "apply", pool.pool(draw.choice([1, 2]))
        elif kind == "own":
            own = tiny["spec"] | {
                "replicas": 1,
                "runtime": tiny["spec"]["runtime"] | {"maxSequences": draw.choice([16, 32])},
            }
            yield "apply", tiny | {"metadata": {"name": OWN}, "spec": own}
        else:
            yield "apply", pool.model(name, runtime=runtime)


@pytest.mark.usefixtures("own_cluster")
def test_the_end_is_that_of_an_undisturbed_run(
    kube: Kube,
    release: Release,
    tiny: dict[str, Any],
    client: openai.OpenAI,
    settings: Settings,
    measured: Figures,
) -> None:
    kills = 50 if settings.long else 5
    folder = Path(settings.shared_files)
    steps = list(churn(max(kills, 10), tiny))
    draw, since = random.Random(1), Stopwatch()
    with fresh_namespace() as stormy:
        pool.provide_models(stormy, folder, POOLED)
        for number, step in enumerate(steps):
            _do(stormy, step)
            hold(draw.uniform(0, 4))
            if number >= len(steps) - kills:
                assert kill_operator(release) == 1
        wait_leader(release)
        disturbed = _settled(stormy)
        measured |= {"kills": kills, "steps": len(steps), "seconds": since.seconds, "end": disturbed}
        assert stormy.orphans() == []
        for name in disturbed["models"]:
            answer = client.completions.create(model=name, prompt=PROMPT, max_tokens=4, temperature=0)
            assert answer.usage is not None
    stormy.wait_names_free()
    pool.provide_models(kube, folder, POOLED)
    for step in steps:
        _do(kube, step)
        hold(1)
    assert disturbed == _settled(kube), told(measured)


def _do(kube: Kube, step: Step) -> None:
    match step:
        case ("apply", dict(manifest)):
            kube.apply(manifest)
        case (_, str(name)):
            kube.delete_model(name)


def _settled(kube: Kube) -> dict[str, Any]:
    """Wait until all models are settled and two samples of the state in a row, SETTLED_HOLD seconds apart, are equal.
    Return that state.
    """
    seen: list[dict[str, Any]] = [{}]

    def look() -> bool:
        seen.append(_state(kube))
        if all(model["settled"] for model in seen[-1]["models"].values()) and seen[-1] == seen[-2]:
            return True
        hold(SETTLED_HOLD)
        return False

    until("everything settled", look, timeout=SETTLED_WITHIN, state=lambda: (seen[-1], kube.conditions()))
    return seen[-1]


def _state(kube: Kube) -> dict[str, Any]:
    """Return the state to compare: models with their conditions, number of hosts and number of pods."""
    held = pool.holders(kube)
    models = {
        name: {
            "spec": item["spec"],
            "settled": conditions.get("Ready", {}).get("status") == "True"
            and conditions.get("Progressing", {}).get("status") == "False",
            "conditions": sorted(
                (kind, conditions[kind]["status"]) for kind in ("Ready", "Placed", "Routable") if kind in conditions
            ),
            "hosts": len(held.get(name, [])),
            "pods": len(kube.pods(name)),
        }
        for name, item, conditions in ((name, item, kube.conditions()[name]) for name, item in kube.models().items())
    }
    return {
        "models": models,
        "strangers on hosts": sorted(held.keys() - models.keys()),
        "pods of the pool": len(pool.hosts(kube)),
    }
