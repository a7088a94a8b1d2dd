"""Replicas fill the nodes, as is usual with GPUs: a changed spec still reaches all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle

import openai
import pytest

from harness.figures import Figures, told
from harness.kube import OWNED, Kube, Object
from harness.load import load
from harness.waiting import Stopwatch, until

MODEL = "full"
PROMPT = "w5 w6 w7 w8 w9 w10"
ROLLOUTS: dict[str, dict[str, int]] = {
    f"{MODEL}-as-it-comes": {},
    f"{MODEL}-as-it-is-told": {"maxSurge": 0, "maxUnavailable": 1},
}
ROLLED_WITHIN = 300


@pytest.fixture
def seats(two_nodes: tuple[str, str]) -> int:
    """Number of replicas for each model: one per node."""
    return len(two_nodes)


def test_a_roll_ends_where_there_is_no_room_for_one_more(
    kube: Kube,
    seats: int,
    serve: Callable[..., Object],
    async_client: openai.AsyncOpenAI,
    measured: Figures,
) -> None:
    resources = {"cpu": "200m", "memory": "1500Mi"}
    models = [
        serve(seats, name, resources=resources, template=_one_a_node(name), rollout=rollout)
        for name, rollout in ROLLOUTS.items()
    ]
    before = {name: set(kube.ready_pods(name)) for name in ROLLOUTS}
    names = cycle(ROLLOUTS)
    with load(async_client, lambda: next(names), users=4, prompt=PROMPT, tokens=16) as outcome:
        since = Stopwatch()
        for model in models:
            kube.apply(model | {"spec": model["spec"] | {"runtime": model["spec"]["runtime"] | {"maxSequences": 32}}})
        for name in reversed(ROLLOUTS):
            until(f"a new pod of {name}", partial(_others, kube, name, before[name]), timeout=ROLLED_WITHIN)
            kube.wait_settled(name, seats, timeout=ROLLED_WITHIN)
            measured[name] = {"rolled_after_seconds": since.seconds}
    measured["load"] = outcome.summary()
    assert all(before[name].isdisjoint(kube.ready_pods(name)) for name in ROLLOUTS)
    assert outcome.failures == [], told(measured)
    answered = {name: sum(request.model == name for request in outcome.requests) for name in ROLLOUTS}
    assert all(number > 10 for number in answered.values()), answered


def _others(kube: Kube, name: str, before: set[str]) -> set[str]:
    """Return the model's ready pods except those in `before`."""
    return set(kube.ready_pods(name)) - before


def _one_a_node(name: str) -> Object:
    """Return an affinity that allows one pod of this model per node, as if each node had one GPU for it. (Real GPU
    resources cannot be faked.)
    """
    own = {"labelSelector": {"matchLabels": {OWNED: name}}, "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [own]}}}
