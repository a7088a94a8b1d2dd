"""The chart's NetworkPolicies in force: unrelated pods are refused at each port, and all required traffic passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from harness import helm, pool
from harness.kube import Kube
from harness.policies import enforced
from harness.release import Release
from harness.settings import Settings

MODEL = "policed"
POOLED, ANOTHER = pool.names(MODEL, 2)
PROMPT = "w5 w6 w7 w8 w9 w10"
HOST_API, SERVING, GATEWAY, GATEWAY_METRICS, OPERATOR_METRICS = 8100, 8000, 8080, 8081, 8080
SCRAPER = {"app.kubernetes.io/name": "prometheus"}
TRY = """
import json, socket, sys
found = {}
for name, (host, port) in json.loads(sys.argv[1]).items():
    try:
        socket.create_connection((host, port), timeout=5).close()
        found[name] = True
    except OSError:
        found[name] = False
print(json.dumps(found))
"""
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
        kube.apply(_idle(name, labels, release.image("operator")))
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
        "gateway": (release.address(gateway), GATEWAY),
        "gateway's metrics": (release.address(gateway), GATEWAY_METRICS),
        "operator's metrics": (release.address(operator), OPERATOR_METRICS),
    }
    everything = set(targets)
    assert _open(kube, stranger, targets) == everything, "with no policy in force"
    with enforced():
        assert _open(kube, stranger, targets) == {"gateway"}
        assert _open(kube, scraper, targets) == {"gateway", "gateway's metrics", "operator's metrics"}
        ours = Kube(release.namespace)
        to_models = {"host's models", "a model's own pod"}
        assert _open(ours, gateway, targets) & {"host API", *to_models} == to_models
        assert _open(ours, operator, targets) - {"operator's metrics"} == {"host API", "gateway's metrics"}
        report = f"http://{kube.address(host)}:{HOST_API}/host/v1/report"
        for credential in ("", "Bearer nonsense"):
            assert ours.execute(operator, "python3", "-c", ASK, report, credential).strip() == "401"
        kube.apply(pool.model(ANOTHER, kube.model(POOLED)["spec"]["model"]["source"]))
        kube.wait_condition(ANOTHER, "Ready", "True", timeout=120)
        for name in (MODEL, POOLED, ANOTHER):
            answer = client.completions.create(model=name, prompt=PROMPT, max_tokens=4, temperature=0)
            assert answer.usage is not None


def _open(kube: Kube, pod: str, targets: dict[str, tuple[str, int]]) -> set[str]:
    """Return the names of the targets (name -> host and port) to which a pod can open a TCP connection."""
    found = json.loads(kube.execute(pod, "python3", "-c", TRY, json.dumps(targets)))
    return {name for name, connected in found.items() if connected}


def _idle(name: str, labels: dict[str, str], image: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "idle",
                    "image": image,
                    "command": ["python3", "-c", "import time; time.sleep(3600)"],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }
