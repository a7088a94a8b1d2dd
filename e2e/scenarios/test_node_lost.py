"""A node stops responding under load: no request fails, the status names the node, and its replicas are recreated
elsewhere once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from harness import nodes, pool
from harness.daemons import frozen
from harness.figures import Figures, told
from harness.kube import Kube
from harness.kubectl import cordoned
from harness.load import load
from harness.settings import Settings
from harness.waiting import Stopwatch, hold, until

MODEL = "node-lost"
PROMPT = "w5 w6 w7 w8 w9 w10"
POOLED = pool.names(MODEL, 4)
NOTICED_WITHIN = 90
ELSEWHERE_WITHIN = 30
REPLACED_WITHIN = 240


@pytest.mark.usefixtures("own_cluster")
def test_a_lost_node_costs_no_request_and_what_it_had_is_made_elsewhere_once(
    kube: Kube,
    serve: Callable[..., dict[str, Any]],
    client: openai.OpenAI,
    async_client: openai.AsyncOpenAI,
    two_nodes: tuple[str, str],
    settings: Settings,
    measured: Figures,
) -> None:
    """The node's kubelet and containerd stop, but its containers continue to run.

    One model has a replica on each node. A pool has a pod on each node, with its models placed on the lost one.
    """
    kept, lost = two_nodes
    with cordoned(kept):
        pool.start(kube, Path(settings.shared_files), POOLED, replicas=1)
        [gone] = pool.wait_replicas(kube, 1)
    kube.apply(pool.pool(2))
    serve(2)
    pool.wait_replicas(kube)
    assert sorted(kube.nodes_of(MODEL)) == [kept, lost]
    there = {host["metadata"]["name"]: host["status"]["node"] for host in kube.model_hosts()}
    assert sorted(there.values()) == [kept, lost]
    answers = {name: _ask(client, name) for name in POOLED}
    moved = [name for name in POOLED if pool.places(kube, name) == [gone]]
    assert moved, "the pods of the pool share the models, and this one has none"
    with load(async_client, MODEL, users=3, prompt=PROMPT, tokens=16) as outcome:
        hold(3)
        with ExitStack() as stopped:
            stopped.enter_context(frozen(lost, "kubelet"))
            stopped.enter_context(frozen(lost, "containerd"))
            since = Stopwatch()
            until(f"{lost} not ready", lambda: not nodes.is_ready(lost), timeout=NOTICED_WITHIN)
            measured["not_ready_after_seconds"] = since.seconds
            marked = Stopwatch()
            until(
                "the pool's models elsewhere",
                lambda: all(_answered_off(kube, name, gone) for name in POOLED),
                timeout=NOTICED_WITHIN,
                state=lambda: [kube.describe(name) for name in moved],
            )
            assert {name: _ask(client, name) for name in POOLED} == answers
            measured["elsewhere"] = _figures(marked.seconds)
            until(
                f"a condition that names {lost}",
                lambda: any(lost in c["message"] for c in kube.conditions()[MODEL].values()),
                timeout=NOTICED_WITHIN,
                state=lambda: kube.describe(MODEL),
            )
            until(
                f"two replicas on {kept}",
                lambda: kube.nodes_of(MODEL) == [kept, kept],
                timeout=REPLACED_WITHIN,
                state=lambda: kube.describe(MODEL),
            )
            measured["replaced_after_seconds"] = since.seconds
            hold(60 if settings.long else 5)
        nodes.wait_ready(lost)
        kube.wait_settled(MODEL, 2, timeout=120)
    measured["load"] = outcome.summary()
    assert outcome.failures == [], told(measured)
    assert outcome.answered > 100
    pool.wait_replicas(kube)
    until(
        "each model on one host",
        lambda: all(len(pool.holders(kube).get(name, [])) == 1 for name in POOLED),
        timeout=120,
        state=lambda: pool.holders(kube),
    )
    hold(20)
    assert {name: len(places) for name, places in pool.holders(kube).items()} == dict.fromkeys(POOLED, 1)
    assert {name: _ask(client, name) for name in POOLED} == answers


def _figures(seconds: float) -> Figures:
    """Return the time from the node's marking until all models of the pool answer elsewhere, and the goal."""
    goal = "met" if seconds < ELSEWHERE_WITHIN else "missed"
    return {"seconds": seconds, "goal_seconds": ELSEWHERE_WITHIN, "goal": goal}


def _answered_off(kube: Kube, name: str, gone: str) -> bool:
    """Return whether a model is on another host, which answers for it."""
    placed = kube.model(name)["status"].get("placements", [])
    ready = kube.condition(name, "Ready")
    here = [place for place in placed if place["host"] != gone and place["state"] in ("Asleep", "Resident", "Waking")]
    return bool(here) and ready is not None and ready["status"] == "True"


def _ask(client: openai.OpenAI, model: str) -> str:
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
    )
    return answer.choices[0].text
