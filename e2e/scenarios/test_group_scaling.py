"""Groups are scaled by the scale subresource and by requests, to zero and back; only leaders get requests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import openai
from kubernetes import client as api

from harness.figures import Figures, told
from harness.groups import Member, live, wait_formed
from harness.kube import Kube, Object
from harness.kubectl import kubectl
from harness.load import load
from harness.release import Release
from harness.waiting import Stopwatch, hold, until

MODEL = "group-scaled"
BY_DEMAND = f"{MODEL}-by-demand"
PROMPT = "w5 w6 w7 w8 w9 w10"
PARALLEL = {"tensor": 2, "pods": 2}
RESOURCES = {"cpu": "50m", "memory": "1Gi"}
SCALING = {"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 10, "scaleDownSeconds": 10, "target": {"queue": 1}}
GATEWAY_METRICS = 8081
SCALED_WITHIN, ROUTED_WITHIN = 180, 30


def test_scale_counts_groups_and_requests_go_to_leaders(
    kube: Kube,
    release: Release,
    serve: Callable[..., Object],
    async_client: openai.AsyncOpenAI,
    measured: Figures,
) -> None:
    serve(1, parallel=PARALLEL, resources=RESOURCES)
    with load(async_client, MODEL, users=4, prompt=PROMPT, tokens=16) as outcome:
        for replicas in (2, 1):
            since = Stopwatch()
            kubectl("scale", "mdep", MODEL, f"--replicas={replicas}", "--namespace", kube.namespace)
            wait_formed(kube, MODEL, replicas)
            measured[f"{replicas} groups"] = {"after_seconds": since.seconds}
            leaders = [member for member in live(kube, MODEL) if member.index == 0]
            assert len(leaders) == replicas
            _check_scale(kube, leaders)
            _wait_routed(kube, release, leaders)
    measured["load"] = outcome.summary()
    assert outcome.failures == [], told(measured)
    assert outcome.answered > 20


def _check_scale(kube: Kube, leaders: Sequence[Member]) -> None:
    """Check the scale subresource, which autoscalers read."""
    objects: Any = api.CustomObjectsApi()
    scale = objects.get_namespaced_custom_object_scale(
        "plimsoll.dev", "v1alpha1", kube.namespace, "modeldeployments", MODEL
    )
    assert scale["status"]["replicas"] == len(leaders)
    pods = ("get", "pods", "--namespace", kube.namespace, "--output", "name", "--selector", scale["status"]["selector"])
    assert set(kubectl(*pods).split()) == {f"pod/{leader.name}" for leader in leaders}


def _wait_routed(kube: Kube, release: Release, leaders: Sequence[Member]) -> None:
    """Wait until the gateways and the model's Service have the leaders only."""
    until(
        f"each gateway with {len(leaders)} replicas",
        lambda: _known_replicas(kube, release) == {float(len(leaders))},
        timeout=ROUTED_WITHIN,
        state=lambda: _known_replicas(kube, release),
    )
    addresses = {leader.address for leader in leaders}
    until("the Service with the leaders", lambda: _endpoints(kube) == addresses, timeout=ROUTED_WITHIN)


def _known_replicas(kube: Kube, release: Release) -> set[float]:
    """Return the numbers of replicas of the model that the gateways know, from their metrics."""
    found = set()
    for gateway in release.ready_pods("gateway"):
        path = f"/api/v1/namespaces/{release.namespace}/pods/{gateway}:{GATEWAY_METRICS}/proxy/metrics"
        text = kubectl("get", "--raw", path)
        labels = rf'(?=[^}}]*model="{MODEL}")(?=[^}}]*namespace="{kube.namespace}")'
        series = re.search(rf"^plimsoll_gateway_replicas{{{labels}[^}}]*}} (\S+)$", text, re.MULTILINE)
        found.add(float(series[1]) if series else 0.0)
    return found


def _endpoints(kube: Kube) -> set[str]:
    """Return the addresses behind the model's Service."""
    selector = f"kubernetes.io/service-name={MODEL}"
    command = ("get", "endpointslices", "--namespace", kube.namespace, "--selector", selector, "--output", "json")
    slices = json.loads(kubectl(*command))["items"]
    return {address for found in slices for end in found["endpoints"] or () for address in end["addresses"]}


def test_requests_scale_groups_from_zero_to_two_and_back(
    kube: Kube, tiny: Object, new_client: Callable[[], openai.AsyncOpenAI], measured: Figures
) -> None:
    runtime = tiny["spec"]["runtime"] | {"maxSequences": 1}
    spec = {"parallel": PARALLEL, "resources": RESOURCES, "scaling": SCALING, "runtime": runtime}
    kube.apply(tiny | {"metadata": {"name": BY_DEMAND}, "spec": tiny["spec"] | spec})
    kube.wait_condition(BY_DEMAND, "Ready", "True")
    _wait_groups(kube, 0)
    since = Stopwatch()
    with load(new_client(), BY_DEMAND, users=8, prompt=PROMPT, tokens=64, pause=0) as outcome:
        until("an answer", lambda: outcome.answered > 0, timeout=SCALED_WITHIN, state=lambda: kube.describe(BY_DEMAND))
        measured["first_answer_seconds"] = since.seconds
        _wait_groups(kube, 2)
        measured["two_groups_after_seconds"] = since.seconds
        hold(3)
    since = Stopwatch()
    _wait_groups(kube, 0)
    measured |= {"to_zero_after_seconds": since.seconds, "load": outcome.summary()}
    assert outcome.failures == [], told(measured)
    assert kube.model(BY_DEMAND)["status"]["desiredReplicas"] == 0, kube.describe(BY_DEMAND)


def _wait_groups(kube: Kube, groups: int) -> None:
    """Wait until a model has exactly this number of groups, all ready."""

    def look() -> bool:
        ready = [member for member in live(kube, BY_DEMAND) if member.ready]
        return len(ready) == groups * PARALLEL["pods"] == len(kube.pods(BY_DEMAND))

    until(f"{groups} groups", look, timeout=SCALED_WITHIN, state=lambda: kube.describe(BY_DEMAND))
