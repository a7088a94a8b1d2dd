"""Status of the cluster's parts, for people and scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from cluster import disk, registry
from cluster.addons import ROLLOUTS
from cluster.addresses import NODES
from cluster.kubectl import Client
from cluster.layout import Layout
from cluster.lifecycle import HUB
from cluster.machine import Machine
from cluster.shell import tail

WIDTH = 16
LOG_LINES = 40


def report(layout: Layout) -> bool:
    """Print a line for each part, and return whether all of them are healthy."""
    machines = [Machine(layout, name) for name in (HUB, *(node.name for node in NODES))]
    lines = [disk_line(layout), *(machine_line(machine) for machine in machines)]
    if machines[0].process is not None:
        lines += service_lines(Client(layout, machines[0]))
    for name, well, text in lines:
        print(f"{name:{WIDTH}} {'ok  ' if well else 'FAIL'} {text}")
    return all(well for _, well, _ in lines)


def disk_line(layout: Layout) -> tuple[str, bool, str]:
    """Return the line about free space for images, volumes and etcd's data."""
    left = disk.free(layout.state)
    return "disk", left >= disk.LEAST, f"{left / disk.GIB:.1f} GiB free where {layout.state} is"


def log_ends(layout: Layout) -> Iterator[str]:
    """Yield the ends of the logs of daemons that do not run, or were restarted, to explain a failure."""
    for home in sorted(layout.machines.glob("*")):
        machine, states = Machine(layout, home.name), home / "running.json"
        running = json.loads(states.read_text()) if states.exists() else {}
        listed = sorted(path.stem for path in (home / "daemons").glob("*.json"))
        ended = [name for name in listed if running.get(name, {"starts": 0})["starts"] != 1]
        for name in (*ended, *(["supervisor"] if ended else [])):
            log = Path(machine.log(name))
            yield f"{log}:\n{tail(log.read_text(errors='replace'), LOG_LINES) if log.exists() else '    (none)'}"


def machine_line(machine: Machine) -> tuple[str, bool, str]:
    """Return the line about a machine and its daemons, with the number of starts of restarted ones."""
    process = machine.process
    if process is None:
        return machine.name, False, "not running"
    running = json.loads((machine.home / "running.json").read_text())
    words = [
        name if state["starts"] == 1 else f"{name} (started {state['starts']} times)" for name, state in running.items()
    ]
    listed = {path.stem for path in (machine.home / "daemons").glob("*.json")}
    absent = sorted(listed - running.keys())
    words += [f"{name} is down, see {machine.log(name)}" for name in absent]
    return machine.name, not absent, f"process {process.pid}: {', '.join(words)}"


def service_lines(client: Client) -> list[tuple[str, bool, str]]:
    """Return lines about the API, the registry, each node and each add-on."""
    ready = client.can("get", "--raw=/readyz")
    lines = [
        ("API", ready, "answers" if ready else f"no answer, see {client.machine.log('kube-apiserver')}"),
        ("registry", registry.answers(client.machine), registry.URL),
    ]
    if not ready:
        return lines
    for node in NODES:
        well = client.can("wait", "--for=condition=Ready", f"node/{node.name}", "--timeout=1s")
        lines.append((node.name, well, f"{node.address} {'Ready' if well else 'not Ready'}"))
    for namespace, workload in ROLLOUTS:
        well = client.can("rollout", "status", workload, "-n", namespace, "--timeout=1s")
        lines.append((workload.split("/")[1], well, f"{workload} in {namespace}"))
    return lines
