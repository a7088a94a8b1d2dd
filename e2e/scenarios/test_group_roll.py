"""Groups are replaced as a whole by rollouts and drains under load, also if the operator is killed in between: no
request fails.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import openai
import pytest

from harness.figures import Figures, told
from harness.group_faults import watched
from harness.groups import live, members, wait_formed
from harness.kube import OWNED, Kube, Object
from harness.kubectl import drained
from harness.load import Outcome, load
from harness.operator_kill import kill_operator, wait_leader
from harness.release import Release
from harness.settings import Settings
from harness.waiting import Stopwatch, hold, until

MODEL = "group-roll"
PROMPT = "w5 w6 w7 w8 w9 w10"
PARALLEL = {"tensor": 2, "pods": 2}
RESOURCES = {"cpu": "50m", "memory": "1Gi"}
GROUPS = 2
ROLLOUTS = {"surge": {"maxSurge": 1}, "no surge": {"maxSurge": 0, "maxUnavailable": 1}}
CHANGED_WITHIN = 300
SETTLED_HOLD = 5


@pytest.fixture
def model(kube: Kube, serve: Callable[..., Object]) -> Object:
    """A model with two groups. The namespace of the test before may still hold its served name for some seconds."""
    found = serve(GROUPS, parallel=PARALLEL, resources=RESOURCES)
    kube.wait_condition(MODEL, "Ready", "True")
    return found


def test_rollouts_and_drains_fail_no_request(
    kube: Kube, model: Object, async_client: openai.AsyncOpenAI, two_nodes: tuple[str, str], measured: Figures
) -> None:
    with watched(kube, MODEL) as faults, _loaded(async_client) as outcome:
        for name, change in _changes(kube, model, two_nodes):
            since = Stopwatch()
            change()
            measured[name] = {"seconds": since.seconds}
    measured["load"] = outcome.summary()
    assert outcome.failures == [], told(measured)
    assert outcome.answered > 50
    assert faults == set()


@pytest.mark.usefixtures("own_cluster")
def test_a_killed_operator_leaves_the_same_end(
    kube: Kube,
    model: Object,
    release: Release,
    async_client: openai.AsyncOpenAI,
    two_nodes: tuple[str, str],
    settings: Settings,
    measured: Figures,
) -> None:
    """At full length also during drains, and until the changes have been made several times."""
    kills = 20 if settings.long else 3
    undisturbed, since = _state(kube), Stopwatch()
    with (
        ThreadPoolExecutor(1) as pool,
        watched(kube, MODEL) as faults,
        _loaded(async_client) as outcome,
    ):
        killing = pool.submit(_kill, release, kills)
        steps = []
        for number in count():
            for name, change in _changes(kube, model, two_nodes if settings.long else (), 32 + 2 * number):
                change()
                steps.append(name)
                hold(SETTLED_HOLD)
                wait_formed(kube, MODEL, GROUPS)
                assert _state(kube) == undisturbed
            if killing.done():
                break
        killing.result()
    measured |= {"kills": kills, "steps": steps, "seconds": since.seconds, "load": outcome.summary()}
    assert outcome.failures == [], told(measured)
    assert faults == set()


def _loaded(client: openai.AsyncOpenAI) -> contextlib.AbstractContextManager[Outcome]:
    return load(client, MODEL, users=3, prompt=PROMPT, tokens=16)


def _changes(
    kube: Kube, model: Object, drained_nodes: Sequence[str], sequences: int = 16
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name of each change, and a function that makes it and waits until it is done: a rollout of each kind,
    and a drain of each of the nodes.
    """
    for number, (name, rollout) in enumerate(ROLLOUTS.items()):
        yield f"rollout, {name}", partial(_roll, kube, model, rollout, sequences + number)
    for node in drained_nodes:
        yield f"drain of {node}", partial(_drain, kube, node)


def _roll(kube: Kube, model: Object, rollout: Object, sequences: int) -> None:
    before = {member.uid for member in members(kube, MODEL)}
    runtime = model["spec"]["runtime"] | {"maxSequences": sequences}
    kube.apply(model | {"spec": model["spec"] | {"runtime": runtime, "rollout": rollout}})
    until(
        "only new pods",
        lambda: before.isdisjoint(member.uid for member in members(kube, MODEL)),
        timeout=CHANGED_WITHIN,
        state=lambda: kube.describe(MODEL),
    )
    wait_formed(kube, MODEL, GROUPS)


def _drain(kube: Kube, node: str) -> None:
    # Both nodes are drained shortly after each other, which the ingress would not survive.
    with drained(node, timeout=CHANGED_WITHIN, selector=f"{OWNED}={MODEL}"):
        wait_formed(kube, MODEL, GROUPS)
        assert node not in {member.node for member in members(kube, MODEL)}


def _kill(release: Release, kills: int) -> None:
    """Kill the operator this number of times, at random instants."""
    draw = random.Random(0)
    while kills:
        hold(draw.uniform(0, 8))
        kills -= kill_operator(release)
    wait_leader(release)


def _state(kube: Kube) -> dict[str, Any]:
    """Return what must not depend on kills: the groups, conditions and objects of the model."""
    found = live(kube, MODEL)
    conditions = kube.conditions()[MODEL]
    return {
        "groups": sorted(Counter(member.group for member in found).values()),
        "hashes": len({member.hash for member in found}),
        "conditions": sorted((kind, c["status"], c["reason"]) for kind, c in conditions.items()),
        "objects": Counter(name.partition("/")[0] for name in kube.names_with_label(OWNED)),
        "orphans": kube.orphans(),
    }
