"""The command line: parse, call, turn an error into one message."""

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

THROUGH = ("kubectl", "helm", "run")
# These look at charts only: they need no cluster, and no root.
LOCAL_HELM = ("dependency", "lint", "package", "show", "template", "version")
DESCRIPTION = "A real two-node Kubernetes on this machine."
EPILOG = f"""The state lies under .cluster/ (logs in .cluster/logs), the cache under
${{XDG_CACHE_HOME:-~/.cache}}/plimsoll/cluster, or where {CACHE_VARIABLE} says. See README.md beside this tool."""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python3 e2e/cluster", description=DESCRIPTION, epilog=EPILOG)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("up", help="start the cluster; finishes or heals one that is partly there")
    verbs.add_parser("down", help="stop it and remove everything but the cache")
    shown = verbs.add_parser("status", help="what runs; exits with 1 when something does not")
    shown.add_argument("--logs", action="store_true", help="and the ends of the logs of daemons that ended")
    verbs.add_parser("images", help="fill the cache with everything `up` needs, and start nothing")
    verbs.add_parser("keda", help="build KEDA into the cache, for the tests that scale with it; some minutes")
    verbs.add_parser("kubectl", help="kubectl ARGUMENT... against the cluster")
    verbs.add_parser("helm", help="helm ARGUMENT... against the cluster")
    verbs.add_parser("run", help="run -- COMMAND...: in the network where nodes, pods and services can be reached")
    build = verbs.add_parser("build-image", help="build an image with buildah; layers are cached")
    build.add_argument("--tag", required=True, metavar="NAME", help="such as plimsoll-operator:e2e")
    build.add_argument("--build-arg", action="append", default=[], metavar="KEY=VALUE")
    build.add_argument("-f", "--file", type=Path, required=True, metavar="DOCKERFILE")
    build.add_argument("context", type=Path, metavar="CONTEXT")
    push = verbs.add_parser("push-image", help="push it to the cluster's registry; prints its reference with digest")
    push.add_argument("name", metavar="NAME")
    for verb, text in (("freeze", "stop a daemon where it is, as SIGSTOP does"), ("thaw", "let it go on")):
        held = verbs.add_parser(verb, help=text)
        held.add_argument("machine", metavar="MACHINE", help="control-plane, n1 or n2")
        held.add_argument("daemon", metavar="DAEMON", help="such as kube-apiserver, kubelet")
    return top


def main(argv: Sequence[str]) -> int:
    """Exit code of the tool."""
    layout = find_layout(os.environ, Path.home())
    try:
        return dispatch(layout, list(argv))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def dispatch(layout: Layout, argv: list[str]) -> int:
    match argv:
        case ["machine", home]:  # what a machine's first process calls; not for people
            supervisor.main(Path(home))
        case ["sweep", identity]:  # what `down` calls in a mount namespace; not for people
            lifecycle.sweep_groups(identity)
        case [verb, *rest] if verb in THROUGH:
            pass_through(layout, verb, rest)
        case _:
            return perform(layout, parser().parse_args(argv))
    return 0


def pass_through(layout: Layout, verb: str, argv: list[str]) -> None:
    """Become the command, so that signals and the exit code are its own."""
    words = argv[1:] if argv[:1] == ["--"] else argv
    command = words if verb == "run" else [verb, *words]
    if not command:
        raise ClusterError("what to run? `python3 e2e/cluster run -- COMMAND...`")
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
        case "build-image":
            build_image(layout, progress, options.tag, options.file, options.context, options.build_arg)
        case "push-image":
            print(push_image(layout, lifecycle.hub_machine(layout), options.name))
        case "freeze":
            Machine(layout, options.machine).daemon(options.daemon).signal(signal.SIGSTOP)
        case "thaw":
            Machine(layout, options.machine).daemon(options.daemon).signal(signal.SIGCONT)
    return 0
