"""The address plan is consistent, and the arguments of `ip` follow it."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from itertools import combinations

from cluster.addresses import API_SERVICE, CONTROL_PLANE, DNS_SERVICE, NODE_PREFIX, NODES, PODS, SERVICES
from cluster.control_plane import IDENTITIES
from cluster.network import hub_lines, node_lines, plug_lines

NODE_NETWORK = ip_network(f"{CONTROL_PLANE}/{NODE_PREFIX}", strict=False)


def test_no_two_ranges_meet() -> None:
    ranges = [NODE_NETWORK, ip_network(PODS), ip_network(SERVICES)]
    assert not any(one.overlaps(other) for one, other in combinations(ranges, 2))
    assert not any(ip_network(a.pods).overlaps(ip_network(b.pods)) for a, b in combinations(NODES, 2))


def test_everything_lies_in_its_range() -> None:
    assert all(ip_address(node.address) in NODE_NETWORK for node in NODES)
    assert all(ip_network(node.pods).subnet_of(ip_network(PODS)) for node in NODES)  # type: ignore[arg-type]
    assert {ip_address(API_SERVICE), ip_address(DNS_SERVICE)} <= set(list(ip_network(SERVICES).hosts())[:16])


def test_the_kubernetes_service_is_the_first_address_of_its_range() -> None:
    assert ip_address(API_SERVICE) == next(iter(ip_network(SERVICES).hosts()))


def test_certificates_name_the_addresses_that_clients_use() -> None:
    names = {identity.name: list(identity.alternatives) for identity in IDENTITIES}
    assert {f"IP:{CONTROL_PLANE}", f"IP:{API_SERVICE}", "IP:127.0.0.1"} <= set(names["apiserver"])
    assert all(f"IP:{node.address}" in names[f"node-{node.name}"] for node in NODES)


def test_every_node_reaches_the_others_pods_and_not_its_own_over_the_wire() -> None:
    for node in NODES:
        lines = node_lines(node, NODES)
        assert f"route add default via {CONTROL_PLANE}" in lines
        routed = [line for line in lines if line.startswith("route add 198.18.")]
        assert routed == [f"route add {other.pods} via {other.address}" for other in NODES if other != node]


def test_the_hub_reaches_pods_through_their_node_and_services_through_the_first() -> None:
    assert f"addr add {CONTROL_PLANE}/{NODE_PREFIX} dev br0" in hub_lines()
    first, second = (plug_lines(node, 42, first=node == NODES[0]) for node in NODES)
    assert "link add port-n1 type veth peer name eth0 netns 42" in first
    assert f"route replace {SERVICES} via {NODES[0].address}" in first
    assert f"route replace {NODES[1].pods} via {NODES[1].address}" in second
    assert not any(SERVICES in line for line in second)
