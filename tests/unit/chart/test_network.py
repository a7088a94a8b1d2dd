"""Connections that the rendered NetworkPolicies allow, evaluated by Kubernetes' rules for each pair of pods and
port.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

Object = dict[str, Any]
Render = Callable[[Object], list[Object]]
RUNTIME = {"app.kubernetes.io/name": "plimsoll-runtime", "app.kubernetes.io/managed-by": "plimsoll-operator"}
PORTS = {"http": 8080, "metrics": 9090, "scaler": 8083}


def ours(component: str) -> dict[str, str]:
    names = {"name": "plimsoll", "instance": "pl", "component": component}
    return {f"app.kubernetes.io/{key}": value for key, value in names.items()}


@dataclass(frozen=True)
class Pod:
    """`namespace` None: outside the cluster, such as the API server or a hub."""

    namespace: str | None
    labels: dict[str, str] = field(default_factory=dict, hash=False)


PODS = {
    "operator": Pod("serving", ours("operator")),
    "gateway": Pod("serving", ours("gateway")),
    "model": Pod("team", {**RUNTIME, "plimsoll.dev/role": "serve"}),
    "host": Pod("team", {**RUNTIME, "plimsoll.dev/role": "host"}),
    "group's member": Pod("team", {**RUNTIME, "plimsoll.dev/role": "serve", "plimsoll.dev/index": "1"}),
    "guest's model": Pod("guests", {**RUNTIME, "plimsoll.dev/role": "serve"}),
    "guest's host": Pod("guests", {**RUNTIME, "plimsoll.dev/role": "host"}),
    "neighbour": Pod("serving", {"app": "x"}),
    "teammate": Pod("team", {"app": "x"}),
    "prometheus": Pod("monitoring", {"app": "prometheus"}),
    "keda": Pod("keda", {"app": "keda-operator"}),
    "keda's adapter": Pod("keda", {"app": "keda-operator-metrics-apiserver"}),
    "false keda": Pod("team", {"app": "keda-operator"}),
    "impostor": Pod("team", ours("gateway")),
    "envoy": Pod("envoys", {"app": "envoy"}),
    "outside": Pod(None),
}


def chosen(selector: Object, labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def is_peer(peer: Object, pod: Pod, home: str) -> bool:
    assert set(peer) <= {"podSelector", "namespaceSelector"}
    if pod.namespace is None:
        return False
    namespaces = peer.get("namespaceSelector")
    here = (
        pod.namespace == home
        if namespaces is None
        else chosen(namespaces, {"kubernetes.io/metadata.name": pod.namespace})
    )
    return here and chosen(peer.get("podSelector", {}), pod.labels)


def ports_of(entry: Object) -> range:
    """Return the ports of an entry of `ports` in a rule."""
    first: int = PORTS.get(entry["port"]) or entry["port"]
    return range(first, entry.get("endPort", first) + 1)


def lets(policies: list[Object], pod: Pod, direction: str, other: Pod, port: int) -> bool:
    """Return whether the policies allow a connection of a pod; a pod without policies is open."""
    mine = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == pod.namespace
        and direction.capitalize() in policy["spec"]["policyTypes"]
        and chosen(policy["spec"]["podSelector"], pod.labels)
    ]
    if not mine:
        return True
    for policy in mine:
        for rule in policy["spec"].get(direction, ()):
            ports = [ports_of(entry) for entry in rule["ports"]]
            peers = rule.get("from" if direction == "ingress" else "to")
            home = policy["metadata"]["namespace"]
            if any(port in found for found in ports) and (
                peers is None or any(is_peer(peer, other, home) for peer in peers)
            ):
                return True
    return False


def reached(policies: list[Object], port: int) -> Iterator[tuple[str, str]]:
    for one, source in PODS.items():
        for other, target in PODS.items():
            out = lets(policies, source, "egress", target, port)
            if one != other and out and lets(policies, target, "ingress", source, port):
                yield one, other


@pytest.fixture
def policies(render: Render) -> list[Object]:
    chat = {"podSelector": {"matchLabels": {"app": "x"}}}
    monitoring = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "podSelector": {"matchLabels": {"app": "prometheus"}},
    }
    policy = {"runtimeNamespaces": ["team", "guests"], "runtimeFrom": [chat], "metricsFrom": [monitoring]}
    found = render({"networkPolicy": policy})
    return [item for item in found if item["kind"] == "NetworkPolicy"]


RUNTIMES = {"model", "host", "group's member", "guest's model", "guest's host"}
HOSTS = {"host", "guest's host"}


def test_the_host_api_is_reached_by_the_operator_alone(policies: list[Object]) -> None:
    """The gateway wakes models by forwarded requests only."""
    pairs = {pair for pair in reached(policies, 8100) if pair[1] in RUNTIMES}
    assert pairs == {("operator", host) for host in HOSTS}


def test_models_are_asked_by_gateway_and_operator_and_whoever_is_named(policies: list[Object]) -> None:
    """The operator asks the leaders of groups for /health."""
    pairs = {pair for pair in reached(policies, 8000) if pair[1] in RUNTIMES}
    assert pairs == {(who, pod) for who in ("gateway", "operator") for pod in RUNTIMES} | {
        ("teammate", pod) for pod in RUNTIMES if PODS[pod].namespace == "team"
    }


def test_the_metrics_of_runtimes_are_reached_by_the_scraper_and_nothing_else(policies: list[Object]) -> None:
    pairs = {pair for pair in reached(policies, 8001) if pair[1] in RUNTIMES}
    assert pairs == {("prometheus", pod) for pod in RUNTIMES}


def test_without_named_scrapers_all_pods_reach_the_metrics_of_runtimes_and_no_more(render: Render) -> None:
    found = render({"networkPolicy": {"runtimeNamespaces": ["team", "guests"]}})
    policies = [item for item in found if item["kind"] == "NetworkPolicy"]
    open_to = {port: {one for one, other in reached(policies, port) if other == "model"} for port in (8000, 8001)}
    assert open_to == {8000: {"gateway", "operator"}, 8001: set(PODS) - {"model", "gateway", "operator"}}


@pytest.mark.matrix(2)
@pytest.mark.parametrize("port", [22, 80, 8002, 8080, 8199, 8232, 9090, 10250, 19999, 30000])
def test_nothing_else_of_a_runtime_is_reached(policies: list[Object], port: int) -> None:
    assert {pair for pair in reached(policies, port) if pair[1] in RUNTIMES} == set()


@pytest.mark.parametrize("port", [8200, 8231, 20000, 29999])
def test_the_ports_of_groups_are_reached_by_runtimes_of_their_namespace_alone(
    policies: list[Object], port: int
) -> None:
    team = [name for name in RUNTIMES if PODS[name].namespace == "team"]
    guests = [name for name in RUNTIMES if PODS[name].namespace == "guests"]
    wanted = {pair for names in (team, guests) for pair in itertools.permutations(names, 2)}
    assert {pair for pair in reached(policies, port) if pair[1] in RUNTIMES} == wanted


def test_the_gateway_is_open_and_its_metrics_are_not(policies: list[Object]) -> None:
    assert {one for one, other in reached(policies, 8080) if other == "gateway"} == set(PODS) - {"gateway", "operator"}
    assert {one for one, other in reached(policies, 9090) if other == "gateway"} == {"operator", "prometheus"}
    assert {one for one, other in reached(policies, 8080) if other == "operator"} == {"prometheus"}


def test_a_gateway_api_implementation_reaches_the_gateway_where_it_is_named(render: Render) -> None:
    """Like an ingress controller: its pods forward the requests."""
    envoy = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "envoys"}}}
    route = {"enabled": True, "parentRefs": [{"name": "public", "namespace": "gateways"}]}
    found = render({"httpRoute": route, "networkPolicy": {"gatewayFrom": [envoy]}})
    policies = [item for item in found if item["kind"] == "NetworkPolicy"]
    assert {one for one, other in reached(policies, 8080) if other == "gateway"} == {"envoy"}


@pytest.mark.parametrize("who", ["operator", "gateway"])
def test_what_the_control_plane_may_reach(policies: list[Object], who: str) -> None:
    """The API server is outside the cluster, on any address; hubs, cloud metadata and databases are not reachable."""
    out = {
        port: {other for other, pod in PODS.items() if other != who and lets(policies, PODS[who], "egress", pod, port)}
        for port in (22, 53, 80, 443, 5432, 6443, 8000, 8080, 8100, 9090)
    }
    everybody = set(PODS) - {who}
    wanted = {53: everybody, 443: everybody, 6443: everybody}
    wanted |= {8000: RUNTIMES} | ({} if who == "gateway" else {8100: HOSTS, 9090: {"gateway"}})
    assert {port: found for port, found in out.items() if found} == wanted


@pytest.mark.parametrize("enabled", [False, True])
def test_the_external_scaler_is_asked_by_keda_alone(render: Render, *, enabled: bool) -> None:
    """Since a policy selects the pods, the port is closed unless it is enabled."""
    found = render({"operator": {"externalScaler": {"enabled": enabled}}})
    policies = [item for item in found if item["kind"] == "NetworkPolicy"]
    assert {pair for pair in reached(policies, 8083) if pair[1] == "operator"} == (
        {("keda", "operator")} if enabled else set()
    )
    assert ("keda", "gateway") not in set(reached(policies, 8083))
