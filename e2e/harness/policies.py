"""Enforces NetworkPolicies on this machine's own cluster, whose network plugin does not.

The existing policies, pods and namespaces become iptables rules on both nodes, as networking.k8s.io/v1 defines them.
Pods created later have no rules and are not restricted, because other scenarios may create some. A policy with an
unsupported field (ipBlock) is an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.addresses import NODES
from cluster.layout import find_layout
from cluster.machine import Machine
from harness.kubectl import kubectl

Object = Mapping[str, Any]
CHAIN = "PLIMSOLL-POLICY"
JUMP = ["FORWARD", "-j", CHAIN]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with its own address."""

    namespace: str
    address: str
    labels: Mapping[str, str]
    ports: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class World:
    """Objects that policies select. `namespaces`: name of a namespace -> its labels. `blocks`: the address ranges from
    which nodes give pods their addresses, also later ones.
    """

    pods: tuple[Pod, ...]
    namespaces: Mapping[str, Mapping[str, str]]
    blocks: tuple[str, ...] = ()

    def peers(self, peer: Object, home: str) -> list[Pod]:
        """Return the pods that `peer` selects: an entry of `from` or `to` in a policy of namespace `home`."""
        if "ipBlock" in peer:
            raise ValueError(f"a peer with an ipBlock is not known here: {peer}")
        if (chosen := peer.get("namespaceSelector")) is not None:
            places = {name for name, labels in self.namespaces.items() if selects(chosen, labels)}
        else:
            places = {home}
        return [p for p in self.pods if p.namespace in places and selects(peer.get("podSelector") or {}, p.labels)]


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects these labels; an empty one selects everything."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(rule, labels) for rule in selector.get("matchExpressions") or ())


def _holds(rule: Object, labels: Mapping[str, str]) -> bool:
    key, values = rule["key"], rule.get("values") or ()
    known = {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }
    return known[rule["operator"]]


def rules(policies: Iterable[Object], world: World) -> list[str]:
    """Return lines for iptables-restore: a packet is refused unless the policies of its source and of its destination
    allow it.
    """
    chains, lines, numbers = [f":{CHAIN} - [0:0]"], [], iter(range(10**6))
    lines.append(f"-A {CHAIN} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN")
    found = list(policies)
    for pod in world.pods:
        for direction, end in (("Ingress", "-d"), ("Egress", "-s")):
            isolating = [policy for policy in found if _isolates(policy, pod, direction)]
            if not isolating:
                continue
            chain = f"{CHAIN}-{next(numbers)}"
            chains.append(f":{chain} - [0:0]")
            lines.append(f"-A {CHAIN} {end} {pod.address} -j {chain}")
            allowed = {match for policy in isolating for match in _allowed(policy, pod, direction, world)}
            lines += [f"-A {chain} {match} -j RETURN".replace("  ", " ") for match in sorted(allowed)]
            if direction == "Egress":
                lines += [f"-A {chain} -d {known.address} -j REJECT" for known in world.pods]
                lines += [f"-A {chain} -d {block} -j RETURN" for block in world.blocks]
            lines.append(f"-A {chain} -j REJECT")
    return ["*filter", *chains, *lines, "COMMIT"]


def _isolates(policy: Object, pod: Pod, direction: str) -> bool:
    same = policy["metadata"]["namespace"] == pod.namespace
    return same and direction in policy["spec"]["policyTypes"] and selects(policy["spec"]["podSelector"], pod.labels)


def _allowed(policy: Object, pod: Pod, direction: str, world: World) -> Iterator[str]:
    """Yield iptables matches of traffic that a policy allows to or from a pod."""
    word, end, other = ("ingress", "from", "-s") if direction == "Ingress" else ("egress", "to", "-d")
    for rule in policy["spec"].get(word) or ():
        peers = rule.get(end)
        ends = [p for peer in peers for p in world.peers(peer, pod.namespace)] if peers else [None]
        for peer in ends:
            where = f"{other} {peer.address}" if peer else ""
            served = pod if direction == "Ingress" else peer
            for port in rule.get("ports") or [{}]:
                yield f"{where} {_port(port, served)}".strip()


def _port(port: Object, served: Pod | None) -> str:
    if not port:
        return ""
    protocol = f"-p {port.get('protocol', 'TCP').lower()}"
    number = port.get("port")
    if isinstance(number, str):
        number = served.ports.get(number, 0) if served else 0
    if (last := port.get("endPort")) is not None:
        number = f"{number}:{last}"
    return protocol if number is None else f"{protocol} --dport {number}"


@contextlib.contextmanager
def enforced() -> Iterator[None]:
    """Enforce the existing policies within the context."""
    policies, world = _read()
    text = "\n".join([*rules(policies, world), ""])
    nodes = [Machine(find_layout(os.environ, Path.home()), node.name) for node in NODES]
    try:
        for node in nodes:
            _run(node.enter("iptables-restore", "--noflush"), text)
            _run(node.enter("iptables", "-I", *JUMP))
        yield
    finally:
        for node in nodes:
            _run(node.enter("iptables", "-D", *JUMP), check=False)
            chains = [line[1:].split()[0] for line in text.splitlines() if line.startswith(":")]
            gone = [f"-F {chain}" for chain in chains] + [f"-X {chain}" for chain in chains]
            _run(node.enter("iptables-restore", "--noflush"), "\n".join(["*filter", *gone, "COMMIT", ""]), check=False)


def _read() -> tuple[list[Object], World]:
    def listed(kind: str) -> list[Any]:
        found: list[Any] = json.loads(kubectl("get", kind, "--all-namespaces", "--output", "json"))["items"]
        return found

    pods = tuple(_pod(item) for item in listed("pods") if _has_address(item))
    namespaces = {item["metadata"]["name"]: item["metadata"].get("labels") or {} for item in listed("namespaces")}
    return listed("networkpolicies"), World(pods, namespaces, tuple(node.pods for node in NODES))


def _has_address(item: Object) -> bool:
    running = item["status"].get("phase") == "Running" and item["status"].get("podIP")
    return bool(running) and not item["spec"].get("hostNetwork")


def _pod(item: Object) -> Pod:
    ports = [port for container in item["spec"]["containers"] for port in container.get("ports", [])]
    named = {port["name"]: int(port["containerPort"]) for port in ports if "name" in port}
    meta = item["metadata"]
    return Pod(meta["namespace"], item["status"]["podIP"], meta.get("labels") or {}, named)


def _run(command: list[str], stdin: str = "", *, check: bool = True) -> None:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}\n{stdin}")
