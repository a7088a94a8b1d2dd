"""NetworkPolicies become firewall rules by their specification: traffic of isolated pods is refused unless allowed."""

from __future__ import annotations

from typing import Any

import pytest

from harness.policies import Pod, World, rules, selects

WEB = Pod("team", "10.0.0.1", {"app": "web"}, {"http": 8000})
FRIEND = Pod("team", "10.0.0.2", {"app": "friend"}, {"http": 9000})
FAR = Pod("other", "10.0.0.3", {"app": "friend"}, {})
WORLD = World((WEB, FRIEND, FAR), {"team": {"name": "team"}, "other": {"name": "other"}})


def policy(**spec: Any) -> dict[str, Any]:
    body = {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], **spec}
    return {"metadata": {"namespace": "team"}, "spec": body}


def passing(*policies: dict[str, Any], direction: str = "-d") -> list[str] | None:
    """Return the traffic that may reach (or leave) the first pod, or None if it is not isolated."""
    lines = rules(policies, WORLD)
    jump = next((line for line in lines if f"{direction} {WEB.address} -j" in line), None)
    if jump is None:
        return None
    chain = jump.split()[-1]
    own = [line.removeprefix(f"-A {chain} ") for line in lines if line.startswith(f"-A {chain} ")]
    assert own[-1] == "-j REJECT"
    return [line.removesuffix(" -j RETURN") for line in own[:-1] if line.endswith("-j RETURN")]


def test_a_pod_that_no_policy_selects_is_open() -> None:
    assert passing() is None
    assert passing(policy(podSelector={"matchLabels": {"app": "another"}})) is None
    assert passing(policy() | {"metadata": {"namespace": "other"}}) is None
    assert passing(policy(), direction="-s") is None


def test_an_isolated_pod_takes_nothing_but_what_is_named() -> None:
    assert passing(policy()) == []
    near = {"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}], "ports": [{"port": "http"}]}
    assert passing(policy(ingress=[near])) == ["-s 10.0.0.2 -p tcp --dport 8000"]
    anywhere = {"podSelector": {"matchLabels": {"app": "friend"}}, "namespaceSelector": {}}
    assert passing(policy(ingress=[{"from": [anywhere], "ports": [{"port": 53, "protocol": "UDP"}]}])) == [
        "-s 10.0.0.2 -p udp --dport 53",
        "-s 10.0.0.3 -p udp --dport 53",
    ]
    assert passing(policy(ingress=[{"ports": [{"port": 80}]}])) == ["-p tcp --dport 80"]
    ranges = [{"port": 8200, "endPort": 8231}, {"port": 53, "endPort": 53, "protocol": "UDP"}]
    assert passing(policy(ingress=[{"from": [{"podSelector": {}}], "ports": ranges}])) == [
        f"-s {address} {match}"
        for address in ("10.0.0.1", "10.0.0.2")
        for match in ("-p tcp --dport 8200:8231", "-p udp --dport 53:53")
    ]


def test_policies_add_up() -> None:
    one, two = ({"ports": [{"port": port}]} for port in (80, 81))
    assert passing(policy(ingress=[one]), policy(ingress=[two])) == ["-p tcp --dport 80", "-p tcp --dport 81"]


def test_what_leaves_goes_by_the_ports_of_those_it_goes_to() -> None:
    rule = {"to": [{"podSelector": {"matchLabels": {"app": "friend"}}}], "ports": [{"port": "http"}]}
    found = passing(policy(policyTypes=["Egress"], egress=[rule]), direction="-s")
    assert found == ["-d 10.0.0.2 -p tcp --dport 9000"]


def test_what_leaves_for_a_pod_is_refused_unless_the_pod_came_later() -> None:
    world = World(WORLD.pods, WORLD.namespaces, ("10.0.0.0/24",))
    lines = rules([policy(policyTypes=["Egress"])], world)
    end = [line.partition("-0 ")[2] for line in lines if line.startswith("-A PLIMSOLL-POLICY-0 ")]
    assert end == [*(f"-d {pod.address} -j REJECT" for pod in WORLD.pods), "-d 10.0.0.0/24 -j RETURN", "-j REJECT"]


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="not known here"):
        rules([policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}])], WORLD)


def test_selectors() -> None:
    labels = {"app": "web", "tier": "front"}
    assert selects({}, labels)
    assert not selects({"matchLabels": {"app": "web", "tier": "back"}}, labels)
    expressions = [
        {"key": "app", "operator": "In", "values": ["web"]},
        {"key": "tier", "operator": "NotIn", "values": ["back"]},
        {"key": "app", "operator": "Exists"},
        {"key": "zone", "operator": "DoesNotExist"},
    ]
    assert selects({"matchExpressions": expressions}, labels)
    for n, labels_that_fail in enumerate(
        ({"app": "db"}, labels | {"tier": "back"}, {"tier": "front"}, labels | {"zone": "a"})
    ):
        assert not selects({"matchExpressions": [expressions[n]]}, labels_that_fail)
