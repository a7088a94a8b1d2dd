"""The network: a bridge in the control plane's namespace, a veth pair for each node, and routes.

Pods are routed, not bridged: a node sends other nodes' pods to these nodes' addresses, and the control plane reaches
every pod and (through the first node) every service.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.addresses import CONTROL_PLANE, NODE_PREFIX, SERVICES, Node
from cluster.machine import Machine
from cluster.shell import run

BRIDGE = "br0"


def hub_lines() -> list[str]:
    """Return lines for `ip -batch` that create the bridge in the control plane's network."""
    return [
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"addr add {CONTROL_PLANE}/{NODE_PREFIX} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ]


def plug_lines(node: Node, node_pid: int, first: bool) -> list[str]:
    """Return lines for `ip -batch` that connect a node to the bridge, in the control plane's network.

    `node_pid`: a process in the node's network. `first`: services are routed through this node.
    """
    lines = [
        f"link add port-{node.name} type veth peer name eth0 netns {node_pid}",
        f"link set port-{node.name} master {BRIDGE} up",
        f"route replace {node.pods} via {node.address}",
    ]
    return [*lines, f"route replace {SERVICES} via {node.address}"] if first else lines


def node_lines(node: Node, nodes: Sequence[Node]) -> list[str]:
    """Return lines for `ip -batch` that set up addresses and routes in the node's own network."""
    return [
        "link set lo up",
        f"addr add {node.address}/{NODE_PREFIX} dev eth0",
        "link set eth0 up",
        f"route add default via {CONTROL_PLANE}",
        *(f"route add {other.pods} via {other.address}" for other in nodes if other != node),
    ]


def wire_hub(hub: Machine) -> None:
    """Create the bridge. Call it once after the machine has booted."""
    run(hub.enter("ip", "-batch", "-"), stdin="\n".join(hub_lines()))


def wire_node(hub: Machine, machine: Machine, node: Node, nodes: Sequence[Node]) -> None:
    """Connect a node that has just booted."""
    lines = plug_lines(node, machine.holder().pid, first=node == nodes[0])
    run(hub.enter("ip", "-batch", "-"), stdin="\n".join(lines))
    run(machine.enter("ip", "-batch", "-"), stdin="\n".join(node_lines(node, nodes)))
