"""`make e2e`: builds the images, installs the chart, runs the scenarios, and cleans up.

Without KUBECONFIG it starts this machine's own cluster (`e2e/cluster`) and stops it afterwards, unless it was running
before or --keep is given. With KUBECONFIG and REGISTRY in the environment it uses that cluster and pushes there. `make
e2e-long` runs the scenarios at full length and stores their figures in a file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cluster import disk
from cluster.errors import ClusterError
from harness import figures, runs
from harness.settings import Settings

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
CLUSTER = [sys.executable, str(HERE / "cluster")]
KUBECONFIG = REPOSITORY / ".cluster" / "kubeconfig"
OWN_REGISTRY = "registry.plimsoll.test"
STOP_SECONDS = 90
GONE_SECONDS = 300
NODES_BYTES = 16 * disk.GIB
"""Maximum disk space that both nodes write: 6.4 GB of unpacked image each, and packed layers while they are
unpacked.
"""
RELEASE, NAMESPACE, HOST = "plimsoll", "plimsoll-system", "models.plimsoll.test"
ROUTE_HOSTS = "ai.plimsoll.test,chat.plimsoll.test"
"""Host names of the HTTPRoute on this machine's own cluster."""
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
IMAGES = {
    "plimsoll-operator": ("operator/Dockerfile", {}),
    "plimsoll-runtime": ("runtime/Dockerfile", {"DEMO": "1", "COMPILER": "0"}),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster: its registry, its ingress, and how commands reach both."""

    registry: str
    url: str
    own: bool

    @property
    def prefix(self) -> list[str]:
        """Command prefix that reaches the cluster's network."""
        return [*CLUSTER, "run", "--"] if self.own else []


def main() -> int:
    """Run everything and return the scenarios' exit code, or 1 if an earlier step failed."""
    args = _arguments()
    if args.list:
        print("\n".join(runs.names()))
        return 0
    own = "KUBECONFIG" not in os.environ
    failed = True
    was_up = own and subprocess.run([*CLUSTER, "status"], capture_output=True, check=False).returncode == 0
    try:
        target = _own_cluster() if own else _given_cluster(args)
        if not args.no_build:
            for name, (dockerfile, build_args) in IMAGES.items():
                _build_and_push(target, name, dockerfile, build_args)
        if own and not was_up:
            disk.require(REPOSITORY, NODES_BYTES, "pulling our images on both nodes")
        _install(target)
        passed = _scenarios(target, args)
        _await_gone(target)
        leftovers = [] if args.keep else _uninstall(target)
        failed = not passed
    except ClusterError as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"e2e: {' '.join(map(str, error.cmd))} ended with {error.returncode}", file=sys.stderr)
        return 1
    finally:
        if own and failed:
            _run([*CLUSTER, "status", "--logs"], check=False)
        if own and not was_up and not args.keep:
            _run([*CLUSTER, "down"], check=False)
    if leftovers:
        print("e2e: helm uninstall left behind:\n" + "\n".join(leftovers), file=sys.stderr)
    return 0 if passed and not leftovers else 1


def _own_cluster() -> Target:
    _run([*CLUSTER, "up"])
    os.environ["KUBECONFIG"] = str(KUBECONFIG)
    return Target(OWN_REGISTRY, "http://192.0.2.11", own=True)


def _given_cluster(args: argparse.Namespace) -> Target:
    registry = os.environ.get("REGISTRY")
    if not registry or not args.url:
        raise SystemExit("e2e: with KUBECONFIG, set REGISTRY=host/path to push to, and --url to the ingress's address")
    return Target(registry, args.url, own=False)


def _build_and_push(target: Target, name: str, dockerfile: str, build_args: dict[str, str]) -> None:
    reference = f"{target.registry}/{name}:e2e"
    flags = [item for key, value in build_args.items() for item in ("--build-arg", f"{key}={value}")]
    if target.own:
        _run([*CLUSTER, "build-image", "--tag", reference, *flags, "-f", dockerfile, "."])
        _run([*CLUSTER, "push-image", reference])
        return
    engine = next((tool for tool in ("docker", "podman", "buildah") if shutil.which(tool)), None)
    if engine is None:
        raise SystemExit("e2e: building images for your registry needs docker, podman or buildah on the PATH")
    _run([engine, "build", "--tag", reference, *flags, "-f", dockerfile, "."])
    _run([engine, "push", reference])


def _install(target: Target) -> None:
    values = {
        "image.registry": target.registry,
        "image.tag": "e2e",
        "image.pullPolicy": "Always",
        "runtime.image.registry": target.registry,
        "runtime.image.tag": "e2e",
        "runtime.image.pullPolicy": "Always",
        "ingress.enabled": "true",
        "ingress.host": HOST,
        "ingress.className": "contour" if target.own else "",
        # Scenarios serve the same name from several namespaces in turn.
        "servedNames.graceSeconds": "0",
    }
    if target.own:
        values |= {
            "httpRoute.enabled": "true",
            "httpRoute.parentRefs[0].name": "contour",
            "httpRoute.parentRefs[0].namespace": "projectcontour",
            "httpRoute.hostnames": f"{{{ROUTE_HOSTS}}}",
        }
    flags = [item for key, value in values.items() if value for item in ("--set", f"{key}={value}")]
    if f"namespace/{NAMESPACE}" not in _kubectl(target, "get", "namespaces", "--output", "name"):
        _kubectl(target, "create", "namespace", NAMESPACE)
    _kubectl(target, "label", "--overwrite", "namespace", NAMESPACE, RESTRICTED)
    command = ["upgrade", "--install", RELEASE, "charts/plimsoll", "--namespace", NAMESPACE]
    _run([*_helm(target), *command, "--wait", "--timeout", "5m", *flags])


def _scenarios(target: Target, args: argparse.Namespace) -> bool:
    """Run the chosen scenarios, print a summary, store the figures if requested, and return whether all passed."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            url=target.url,
            host=HOST,
            route_hosts=ROUTE_HOSTS if target.own else "",
            release=RELEASE,
            release_namespace=NAMESPACE,
            shared_files=str(REPOSITORY / ".cluster" / "shared") if target.own else "",
            own_cluster="yes" if target.own else "",
            length="long" if args.long else "short",
            results=folder,
            runs=str(args.runs.resolve()) if args.runs else "",
        )
        environment = os.environ | settings.environment()
        results: list[runs.Result] = []
        took: dict[str, float] = {}
        began = time.monotonic()

        def run(lane: list[str], *, alone: bool) -> None:
            for name in lane:
                print(f"e2e: scenario {name}", flush=True)
                since = time.monotonic()
                found = runs.run(target.prefix, name, args.pytest, environment, at_the_end=not alone)
                took[name] = time.monotonic() - since
                print(f"e2e: {name} took {took[name]:.0f} s", flush=True)
                results.extend(found)
                measured = {k: v for k, v in figures.load(Path(folder)).items() if k.startswith(f"test_{name}.py")}
                print("\n".join(f"e2e: {line}" for line in figures.goals(measured)), flush=True)
                if args.record:
                    records = runs.as_records(found, measured)
                    _record(args.record, _provenance(target) | {"length": settings.length}, records)

        for turn in runs.turns(runs.choose(args.only), beside=not args.long and not args.only):
            with ThreadPoolExecutor() as pool:
                list(pool.map(partial(run, alone=len(turn) == 1), turn))
    print(runs.summary(results, took, time.monotonic() - began), flush=True)
    return bool(results) and all(result.outcome != "failed" for result in results)


def _record(file: Path, run: dict[str, Any], records: list[dict[str, Any]]) -> None:
    """Store results in a file that may have results of other scenarios."""
    before = json.loads(file.read_text()) if file.exists() else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(runs.merged(before, run, records), indent=1) + "\n")


def _provenance(target: Target) -> dict[str, Any]:
    """Return hardware and versions of the run. The module `provenance` is imported here because it needs torch, which
    the scenarios do not.
    """
    from provenance import provenance

    version = json.loads(_output(target, "version", "--output", "json"))["serverVersion"]["gitVersion"]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=False, capture_output=True, text=True, cwd=REPOSITORY)
    return provenance() | {
        "kubernetes": version,
        "nodes": "this machine's own cluster" if target.own else "given",
        "commit": commit.stdout.strip(),
    }


def _await_gone(target: Target) -> None:
    """Wait until the scenarios' namespaces are deleted, because that needs the operator, which is uninstalled next.
    After GONE_SECONDS, print a message and return.
    """
    deadline = time.monotonic() + GONE_SECONDS
    while any("/e2e-" in name for name in _kubectl(target, "get", "namespaces", "--output", "name")):
        if time.monotonic() > deadline:
            print(f"e2e: namespaces of scenarios still exist after {GONE_SECONDS} s", file=sys.stderr)
            return
        time.sleep(1)


def _uninstall(target: Target) -> list[str]:
    """Uninstall the release. Returns its objects that still exist after STOP_SECONDS, and a message if the
    ModelDeployment CRD is gone, which must stay.
    """
    _run([*_helm(target), "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"])
    deadline = time.monotonic() + STOP_SECONDS
    while (left := _of_the_release(target)) and time.monotonic() < deadline:
        time.sleep(1)
    definitions = _kubectl(target, "get", "crd", "--output", "name")
    if not any("modeldeployments.plimsoll.dev" in name for name in definitions):
        left.append("the ModelDeployment definition is gone; uninstall must leave it (and every object of its kind)")
    return left


def _of_the_release(target: Target) -> list[str]:
    kinds = "all,serviceaccounts,configmaps,secrets,roles,rolebindings,ingresses,networkpolicies,poddisruptionbudgets"
    kinds += ",httproutes" if target.own else ""
    # Older clusters lack admission policies, and kubectl refuses to list unknown kinds.
    admission = _kubectl(target, "api-resources", "--api-group=admissionregistration.k8s.io", "--output", "name")
    policies = [kind for kind in admission if kind.startswith("validatingadmissionpolic")]
    cluster_kinds = ",".join(["clusterroles", "clusterrolebindings", *policies])
    selector = ["--selector", f"app.kubernetes.io/instance={RELEASE}", "--output", "name"]
    return [
        *_kubectl(target, "get", kinds, "--namespace", NAMESPACE, *selector),
        *_kubectl(target, "get", cluster_kinds, *selector),
        *_kubectl(target, "get", "leases", "--namespace", NAMESPACE, "--output", "name"),
    ]


def _helm(target: Target) -> list[str]:
    return [*CLUSTER, "helm"] if target.own else ["helm"]


def _kubectl(target: Target, *arguments: str) -> list[str]:
    return _output(target, *arguments).split()


def _output(target: Target, *arguments: str) -> str:
    command = [*CLUSTER, "kubectl", *arguments] if target.own else ["kubectl", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout


def _run(command: Sequence[str], *, check: bool = True, env: dict[str, str] | None = None) -> int:
    print(f"e2e: {' '.join(c if len(c) < 200 else json.dumps(c)[:60] for c in command)}", flush=True)
    start = time.monotonic()
    code = subprocess.run(command, check=check, cwd=REPOSITORY, env=env).returncode
    print(f"e2e: {time.monotonic() - start:.0f} s", flush=True)
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up afterwards, and the release in it")
    parser.add_argument("--no-build", action="store_true", help="use the images that were pushed before")
    parser.add_argument("--url", help="with KUBECONFIG: URL of the ingress, such as http://203.0.113.7")
    parser.add_argument("--list", action="store_true", help="list the scenarios, and do nothing")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="the scenario named WORD, else those whose names contain it (repeatable)",
    )
    parser.add_argument("--long", action="store_true", help="full length, as `make e2e-long` does")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep results and figures there, as JSON")
    parser.add_argument(
        "--runs", type=Path, metavar="FOLDER", help="folder for records of requests and loads, for placement.recorded"
    )
    parser.add_argument("pytest", nargs="*", help="passed on to pytest, after --")
    args = parser.parse_args()
    try:
        runs.choose(args.only)
    except ValueError as error:
        parser.error(str(error))
    return args


if __name__ == "__main__":
    sys.exit(main())
