"""Starts and stops the cluster. Every step checks the current state first, so that `up` also completes or repairs a
partial cluster.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from cluster import addons, cgroups, control_plane, disk, network, node, packages, registry
from cluster.addresses import NODES, Node
from cluster.binaries import KUBE, Binary, build_missing, contour_manifest
from cluster.errors import ClusterError
from cluster.files import sweep, write
from cluster.images import prepare
from cluster.kubeconfig import write_kubeconfig
from cluster.kubectl import Client
from cluster.layout import SOURCE, Layout
from cluster.locks import InUseError, exclusive
from cluster.machine import Machine
from cluster.pki import Authority
from cluster.progress import Progress
from cluster.shell import run, succeeds
from cluster.wait import until

HUB = "control-plane"
API_SECONDS = 90
NODE_SECONDS = 90


def hub_machine(layout: Layout) -> Machine:
    """Return the control plane's machine."""
    return Machine(layout, HUB)


def require_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError("this makes network and mount namespaces, which needs root: run it with sudo")


@contextmanager
def alone() -> Iterator[None]:
    """Allow only one `up` or `down` of this checkout at a time. Raises ClusterError if another one runs."""
    try:
        with exclusive(SOURCE, wait=False):
            yield
    except InUseError as error:
        raise ClusterError(
            "another `up` or `down` of this checkout's cluster is running; wait until it has finished"
        ) from error


def fill_cache(layout: Layout, progress: Progress) -> list[Path]:
    """Prepare packages, binaries and images for `up`, and return the images' archives."""
    require_root()
    packages.install_missing(progress, layout.build_logs / "apt.log")
    layout.cache.mkdir(parents=True, exist_ok=True)
    with exclusive(layout.cache):
        sweep(layout.cache)
        return prepare(layout, progress)


def build(layout: Layout, progress: Progress, binary: Binary) -> None:
    """Build one program into the cache. No cluster has to run."""
    layout.cache.mkdir(parents=True, exist_ok=True)
    with exclusive(layout.cache):
        build_missing(layout, progress, [binary])


def up(layout: Layout, progress: Progress) -> None:
    """Start the cluster, or complete and repair a partial one."""
    require_root()
    disk.require(layout.state, disk.LEAST, "a cluster")
    with alone():
        names = (HUB, *(each.name for each in NODES))
        if all(Machine(layout, name).process for name in names):
            progress.say("all machines run already; checking their services")
        archives = fill_cache(layout, progress)
        authority = Authority(layout.pki)
        if not layout.kubeconfig.exists():
            control_plane.issue_all(authority)
            write_kubeconfig(layout.kubeconfig, authority, "admin")
            progress.say("keys and certificates made")
        hub = start_hub(layout, authority, progress)
        machines = start_nodes(layout, hub, authority, archives, progress)
        client = Client(layout, hub)
        api_log = hub.log("kube-apiserver")
        until("kube-apiserver", lambda: client.can("get", "--raw=/readyz"), seconds=API_SECONDS, log=api_log)
        progress.say("kube-apiserver ready")
        kube = KUBE.path(layout)
        hub.keep_running(control_plane.controllers(hub, kube, authority))
        for each, machine in machines.items():
            machine.keep_running(node.agents(machine, each, kube, machine.home / "etc"))
        wait_nodes(client, machines)
        progress.say(f"nodes {' '.join(each.name for each in NODES)} Ready")
        addons.install(client, contour_manifest(layout))
        addons.wait_ready(client)
        progress.say("DNS and ingress ready")
    progress.say(f"the cluster is up; kubeconfig: {layout.kubeconfig} (reach it through `python3 e2e/cluster run`)")


def start_hub(layout: Layout, authority: Authority, progress: Progress) -> Machine:
    """Start the control plane's machine with etcd, the API server and the registry."""
    hub = hub_machine(layout)
    config = registry.configure(layout, hub)
    if hub.process is None:
        registry.tidy(layout, config, progress)
    if hub.ensure("", lambda: network.wire_hub(hub)):
        progress.say("control plane's machine started")
    daemons = control_plane.storage_and_api(hub, KUBE.path(layout), authority)
    hub.keep_running([registry.registry(layout, hub, config), *daemons])
    return hub


def start_nodes(
    layout: Layout, hub: Machine, authority: Authority, archives: Sequence[Path], progress: Progress
) -> dict[Node, Machine]:
    """Start the nodes' machines with containerd and import every image, all nodes in parallel."""

    def start(each: Node) -> Machine:
        machine = node.node_machine(layout, each)
        if machine.ensure(str(hub.holder()), lambda: network.wire_node(hub, machine, each, NODES)):
            progress.say(f"{each.name}'s machine started")
        machine.keep_running([node.runtime(machine, node.configure(machine, each, authority))])
        import_images(machine, archives)
        return machine

    with ThreadPoolExecutor() as pool:
        machines = dict(zip(NODES, pool.map(start, NODES), strict=True))
    progress.say("images imported")
    return machines


def import_images(machine: Machine, archives: Sequence[Path]) -> None:
    """Import images that the node lacks. containerd keeps images on disk, so they outlive its machine."""
    log = machine.log("containerd")
    until(f"containerd of {machine.name}", lambda: succeeds(node.ctr(machine, "version")), seconds=30, log=log)
    for archive in archives:
        mark = machine.home / "images" / archive.name
        if not mark.exists():
            run(node.ctr(machine, "images", "import", archive))
            write(mark, "")


def wait_nodes(client: Client, machines: Mapping[Node, Machine]) -> None:
    """Wait until every node's kubelet has reported Ready since its start; a dead node stays Ready for a while."""
    for each, machine in machines.items():
        fresh = partial(has_renewed, client, each, machine.wired_at)
        until(f"kubelet of {each.name}", fresh, seconds=NODE_SECONDS, log=machine.log("kubelet"))
    names = [f"node/{each.name}" for each in machines]
    client.kubectl("wait", "--for=condition=Ready", *names, f"--timeout={NODE_SECONDS}s")


def has_renewed(client: Client, each: Node, since: float) -> bool:
    """Return whether the kubelet has renewed its node's lease since a time (seconds of the epoch)."""
    lease = ("lease", each.name, "--namespace=kube-node-lease", "--ignore-not-found")
    text = client.kubectl("get", *lease, "--output=jsonpath={.spec.renewTime}")
    return bool(text) and datetime.fromisoformat(text).timestamp() > since


def down(layout: Layout, progress: Progress) -> None:
    """Stop the cluster and remove everything except the cache, even if it is only partly up."""
    require_root()
    with alone():
        packages.remove_policy()
        if not layout.state.exists():
            progress.say("the cluster is down already")
            return
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda home: Machine(layout, home.name).kill(), layout.machines.glob("*")))
        progress.say("every process ended")
        run(["unshare", "--mount", "--propagation", "private", sys.executable, SOURCE, "sweep", layout.identity])
        shutil.rmtree(layout.state)
    progress.say("the cluster is down; what can be used again is in " + str(layout.cache))


def sweep_groups(identity: str) -> None:
    """Remove the cluster's control groups from every hierarchy. Runs in its own mount namespace."""
    hierarchies = cgroups.complete()
    cgroups.remove(hierarchies, Path(f"plimsoll-{identity}"))
    cgroups.settle(hierarchies)
