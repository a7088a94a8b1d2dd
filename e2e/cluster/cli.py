"""The command line: parses arguments, calls functions, and prints errors as one message."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster import lifecycle, status, supervisor
from cluster.binaries import HELM_BINARY
from cluster.builder import build_image, load_base, push_image
from cluster.errors import ClusterError
from cluster.keda import build_keda
from cluster.kubectl import Client
from cluster.layout import CACHE_VARIABLE, Layout, find_layout
from cluster.machine import Machine
from cluster.progress import Progress
from cluster.telemetry import build_telemetry

THROUGH = ("kubectl", "helm", "run")
# These commands only read charts: they need neither a cluster nor root.
LOCAL_HELM = ("dependency", "lint", "package", "show", "template", "version")
DESCRIPTION = "A real two-node Kubernetes on this machine."
EPILOG = f"""The state is in .cluster/ (logs in .cluster/logs), the cache in
${{XDG_CACHE_HOME:-~/.cache}}/plimsoll/cluster, or in {CACHE_VARIABLE} if set. See README.md in this tool's folder."""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python3 e2e/cluster", description=DESCRIPTION, epilog=EPILOG)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("up", help="start the cluster, or complete and repair one that is partly running")
    verbs.add_parser("down", help="stop the cluster and remove everything except the cache")
    shown = verbs.add_parser("status", help="show running parts; exits with 1 if a part does not run")
    shown.add_argument("--logs", action="store_true", help="also print the ends of the logs of daemons that ended")
    verbs.add_parser("images", help="fill the cache with everything that `up` needs, without starting anything")
    verbs.add_parser("keda", help="build KEDA into the cache, for tests of scaling with KEDA (takes some minutes)")
    verbs.add_parser(
        "telemetry", help="fetch Jaeger, Zipkin, Prometheus and Alertmanager into the cache, for tests of telemetry"
    )
    verbs.add_parser("kubectl", help="run kubectl ARGUMENT... on the cluster")
    verbs.add_parser("helm", help="run helm ARGUMENT... on the cluster")
    verbs.add_parser("run", help="run -- COMMAND... in a network that reaches nodes, pods and services")
    build = verbs.add_parser("build-image", help="build an image with buildah; layers are cached")
    build.add_argument("--tag", required=True, metavar="NAME", help="name of the image, such as plimsoll-operator:e2e")
    build.add_argument("--build-arg", action="append", default=[], metavar="KEY=VALUE")
    build.add_argument("-f", "--file", type=Path, required=True, metavar="DOCKERFILE")
    build.add_argument("context", type=Path, metavar="CONTEXT")
    push = verbs.add_parser(
        "push-image", help="push an image to the cluster's registry and print its reference with digest"
    )
    push.add_argument("name", metavar="NAME")
    for verb, text in (("freeze", "stop a daemon with SIGSTOP"), ("thaw", "continue a stopped daemon")):
        held = verbs.add_parser(verb, help=text)
        held.add_argument("machine", metavar="MACHINE", help="control-plane, n1 or n2")
        held.add_argument("daemon", metavar="DAEMON", help="such as kube-apiserver, kubelet")
    return top


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    layout = find_layout(os.environ, Path.home())
    try:
        return dispatch(layout, list(argv))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def dispatch(layout: Layout, argv: list[str]) -> int:
    match argv:
        case ["machine", home]:  # internal: called by a machine's first process
            supervisor.main(Path(home))
        case ["sweep", identity]:  # internal: called by `down` in a mount namespace
            lifecycle.sweep_groups(identity)
        case [verb, *rest] if verb in THROUGH:
            pass_through(layout, verb, rest)
        case _:
            return perform(layout, parser().parse_args(argv))
    return 0


def pass_through(layout: Layout, verb: str, argv: list[str]) -> None:
    """Replace this process by the command, so that signals and exit code are the command's."""
    words = argv[1:] if argv[:1] == ["--"] else argv
    command = words if verb == "run" else [verb, *words]
    if not command:
        raise ClusterError("no command given; use `python3 e2e/cluster run -- COMMAND...`")
    client = Client(layout, lifecycle.hub_machine(layout))
    local = verb == "helm" and words[:1] and words[0] in LOCAL_HELM
    if local:
        lifecycle.build(layout, Progress(), HELM_BINARY)
    line = command if local else client.machine.enter(*command)
    environment = {**os.environ, **client.environment()}
    os.execvpe(line[0], line, environment)


def perform(layout: Layout, options: argparse.Namespace) -> int:
    progress = Progress()
    match options.verb:
        case "up":
            lifecycle.up(layout, progress)
        case "down":
            lifecycle.down(layout, progress)
        case "status":
            well = status.report(layout)
            if options.logs:
                print(*status.log_ends(layout), sep="\n")
            return 0 if well else 1
        case "images":
            lifecycle.fill_cache(layout, progress)
            load_base(layout, progress)
        case "keda":
            build_keda(layout, progress)
        case "telemetry":
            build_telemetry(layout, progress)
        case "build-image":
            build_image(layout, progress, options.tag, options.file, options.context, options.build_arg)
        case "push-image":
            print(push_image(layout, lifecycle.hub_machine(layout), options.name))
        case "freeze":
            Machine(layout, options.machine).daemon(options.daemon).signal(signal.SIGSTOP)
        case "thaw":
            Machine(layout, options.machine).daemon(options.daemon).signal(signal.SIGCONT)
    return 0
