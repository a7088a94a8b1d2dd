"""The chart's NetworkPolicies in force: unrelated pods are refused at each port, and all required traffic passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from harness import crash, groups, helm, pool
from harness.idle_pod import idle_pod
from harness.kube import Kube, fresh_namespace
from harness.policies import enforced
from harness.release import Release
from harness.settings import Settings
from harness.sockets import connectable, listening
from harness.tiny_model import RUNTIME

MODEL = "policed"
POOLED, ANOTHER = pool.names(MODEL, 2)
GROUPED = {backend: f"{MODEL}-{backend}" for backend in ("local", "gloo")}
PROMPT = "w5 w6 w7 w8 w9 w10"
HOST_API, SERVING, GATEWAY, GATEWAY_METRICS, OPERATOR_METRICS = 8100, 8000, 8080, 8081, 8080
RUNTIME_METRICS = 8001
SCRAPER = {"app.kubernetes.io/name": "prometheus"}
ASK = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": sys.argv[2]} if sys.argv[2] else {})
try:
    print(urllib.request.urlopen(request, timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.fixture
def stranger_and_scraper(kube: Kube, release: Release) -> tuple[str, str]:
    """The names of two pods that are not Plimsoll's. The fixture `policies` lets the second scrape metrics."""
    for name, labels in (("stranger", {}), ("scraper", SCRAPER)):
        kube.apply(idle_pod(name, release.image("operator"), labels=labels))
    for name in ("stranger", "scraper"):
        kube.wait_running(name)
    return "stranger", "scraper"


@pytest.fixture
def policies(kube: Kube, release: Release, settings: Settings) -> Iterator[None]:
    """Upgrade the release so that its NetworkPolicies know this namespace and the pods that may scrape metrics."""
    labels = {"kubernetes.io/metadata.name": kube.namespace}
    scrapers = [{"namespaceSelector": {"matchLabels": labels}, "podSelector": {"matchLabels": SCRAPER}}]
    with helm.with_values(
        settings.release,
        release.namespace,
        f"networkPolicy.runtimeNamespaces={json.dumps([kube.namespace])}",
        f"networkPolicy.metricsFrom={json.dumps(scrapers)}",
    ):
        yield


@pytest.mark.usefixtures("own_cluster", "policies")
def test_ports_are_open_to_those_who_need_them_alone(
    kube: Kube,
    release: Release,
    serve: Callable[..., dict[str, Any]],
    client: openai.OpenAI,
    settings: Settings,
    stranger_and_scraper: tuple[str, str],
) -> None:
    stranger, scraper = stranger_and_scraper
    serve(1)
    pool.start(kube, Path(settings.shared_files), [POOLED], replicas=1)
    [host] = pool.wait_replicas(kube, 1)
    [gateway, *_], [operator] = release.ready_pods("gateway"), release.ready_pods("operator")
    targets = {
        "host API": (kube.address(host), HOST_API),
        "host's models": (kube.address(host), SERVING),
        "a model's own pod": (kube.address(kube.ready_pods(MODEL)[0]), SERVING),
        "host's metrics": (kube.address(host), RUNTIME_METRICS),
        "a model's metrics": (kube.address(kube.ready_pods(MODEL)[0]), RUNTIME_METRICS),
        "gateway": (release.address(gateway), GATEWAY),
        "gateway's metrics": (release.address(gateway), GATEWAY_METRICS),
        "operator's metrics": (release.address(operator), OPERATOR_METRICS),
    }
    everything = set(targets)
    assert connectable(kube, stranger, targets) == everything, "with no policy in force"
    with enforced():
        assert connectable(kube, stranger, targets) == {"gateway"}
        metrics = {target for target in targets if target.endswith("metrics")}
        assert connectable(kube, scraper, targets) == {"gateway", *metrics}
        ours = Kube(release.namespace)
        to_models = {"host's models", "a model's own pod"}
        assert connectable(ours, gateway, targets) & {"host API", *to_models} == to_models
        asked = {"host API", "gateway's metrics", *to_models}  # models for /health of groups
        assert connectable(ours, operator, targets) - {"operator's metrics"} == asked
        report = f"http://{kube.address(host)}:{HOST_API}/host/v1/report"
        for credential in ("", "Bearer nonsense"):
            assert ours.execute(operator, "python3", "-c", ASK, report, credential).strip() == "401"
        kube.apply(pool.model(ANOTHER, kube.model(POOLED)["spec"]["model"]["source"]))
        kube.wait_condition(ANOTHER, "Ready", "True", timeout=120)
        for name in (MODEL, POOLED, ANOTHER):
            answer = client.completions.create(model=name, prompt=PROMPT, max_tokens=4, temperature=0)
            assert answer.usage is not None


@pytest.mark.usefixtures("own_cluster", "two_nodes", "policies")
def test_ports_of_a_group_are_open_to_its_members_alone(
    kube: Kube, release: Release, serve: Callable[..., dict[str, Any]], client: openai.OpenAI
) -> None:
    """The groups also form another generation while the policies are in force."""
    found: dict[str, tuple[groups.Member, ...]] = {}
    for backend, name in GROUPED.items():
        runtime = RUNTIME | {"threads": 1, "groupBackend": backend}
        serve(1, name, parallel={"tensor": 2, "pods": 2}, runtime=runtime, template=groups.apart())
        found[name] = groups.only_group(kube, name)
    with fresh_namespace() as elsewhere:
        for stranger in (kube, elsewhere):
            stranger.apply(idle_pod("stranger", release.image("operator")))
            stranger.wait_running("stranger")
        ports = {name: _ports(kube, members) for name, members in found.items()}
        everything = {target: place for targets in ports.values() for target, place in targets.items()}
        assert connectable(elsewhere, "stranger", everything) == set(everything), "with no policy in force"
        with enforced():
            assert connectable(elsewhere, "stranger", everything) == set()
            assert connectable(kube, "stranger", everything) == set()
            for name, members in found.items():
                others = (SERVING, RUNTIME_METRICS)
                inner = {target: place for target, place in ports[name].items() if place[1] not in others}
                assert inner, "the ranks listen on no port"
                for member in members:
                    assert connectable(kube, member.name, inner) == set(inner)
                before = _ask(client, name)
                crash.kill_container("plimsoll", members[1].uid)
                groups.wait_restarted(kube, name, members[1])
                assert _ask(client, name) == before


def _ports(kube: Kube, members: tuple[groups.Member, ...]) -> dict[str, tuple[str, int]]:
    """Return the listening sockets of a group that other pods can reach, as targets."""
    return {
        f"{member.name} {socket.port}": (member.address, socket.port)
        for member in members
        for socket in listening(kube, member.name)
        if not socket.loopback
    }


def _ask(client: openai.OpenAI, model: str) -> str:
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0)
    return answer.choices[0].text
