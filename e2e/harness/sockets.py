"""Listening sockets of pods, and the ports that NetworkPolicies open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.kube import Kube
from harness.kubectl import kubectl

LISTENING = """
import json
found = []
for name in ("tcp", "tcp6"):
    with open(f"/proc/net/{name}") as table:
        for fields in map(str.split, list(table)[1:]):
            address, _, port = fields[1].rpartition(":")
            if fields[3] == "0A":
                found.append([int(port, 16), address.endswith(("0100007F", "01000000"))])
print(json.dumps(found))
"""
"""Prints [port, whether it is on the loopback interface] of each listening TCP socket of a pod."""
CONNECT = """
import json, socket, sys
found = []
for name, (host, port) in json.loads(sys.argv[1]).items():
    try:
        socket.create_connection((host, port), timeout=5).close()
        found.append(name)
    except OSError:
        pass
print(json.dumps(found))
"""
"""Prints the names of those of the given targets (name -> host and port) that a pod can open a connection to."""


@dataclass(frozen=True, order=True, slots=True)
class Socket:
    """A listening socket. `loopback`: other pods cannot reach it."""

    port: int
    loopback: bool


def listening(kube: Kube, pod: str) -> set[Socket]:
    """Return the listening TCP sockets of a pod."""
    return {Socket(*values) for values in json.loads(kube.execute(pod, "python3", "-c", LISTENING))}


def connectable(kube: Kube, pod: str, targets: Mapping[str, tuple[str, int]]) -> set[str]:
    """Return the names of the targets (name -> host and port) to which a pod can open a TCP connection."""
    return set(json.loads(kube.execute(pod, "python3", "-c", CONNECT, json.dumps(targets))))


def open_ports(namespace: str, selector: str) -> list[range]:
    """Return the port ranges of the ingress rules of the NetworkPolicies with these labels."""
    text = kubectl("get", "networkpolicies", "--namespace", namespace, "--selector", selector, "--output", "json")
    policies: list[Any] = json.loads(text)["items"]
    ports = [port for policy in policies for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    return [range(port["port"], port.get("endPort", port["port"]) + 1) for port in ports]
