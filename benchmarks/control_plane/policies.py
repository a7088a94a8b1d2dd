"""Cost of the admission policy that reads RuntimePools: creating pods of a pool with and without it, next to many
pools.

PYTHONPATH=benchmarks:e2e:tests/support .venv/bin/python -m control_plane.policies [--pools 1 100 1000]

The API server evaluates this policy once for each RuntimePool in the pod's namespace. (A policy that reads
ModelDeployments would be evaluated once for each of those.) Rounds with and without the policy's binding alternate on
one kube-apiserver.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from operator_support.apiserver import (
    ADMIN,
    FIRST,
    RELEASE,
    RELEASE_NAMESPACE,
    ApiServer,
    Missing,
    find_programs,
    until,
)
from operator_support.direct import Direct, Refused
from operator_support.installed import ADMISSION, install
from operator_support.objects import model

from plimsoll_operator.build.host import HostKey, build_host
from plimsoll_operator.build.image import Image
from plimsoll_operator.spec.runtime_pool import read_pool
from provenance import provenance

BINDING = f"{RELEASE_NAMESPACE}-{RELEASE}-operator-pools"
BINDINGS = f"{ADMISSION}/validatingadmissionpolicybindings"
EMPTY = "empty"
SPEC = {"resources": {"memory": "2Gi"}, "memory": {"sleepers": "1Gi"}}
Json = dict[str, Any]


def main() -> int:
    """Measure, print and write. Return 2 if etcd or kube-apiserver is missing."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--pools", type=int, nargs="+", default=[1, 100, 1000], help="how many (default 1 100 1000)")
    parser.add_argument("--pods", type=int, default=100, help="in each round (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=4, help="with the policy, and as many without (default %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result, with hardware, versions, command")
    args = parser.parse_args()
    try:
        programs = find_programs()
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 2
    result: Json = {"run": {**provenance(), "kubernetes": programs.kube.parent.name.removeprefix("kube-")}, "pods": []}
    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as folder,
        ApiServer(programs, Path(folder)) as server,
        Direct(server.url, ADMIN, EMPTY) as admin,
        Direct(server.url, FIRST, EMPTY) as operator,
    ):
        install(server)
        admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": EMPTY}})
        for count in args.pools:
            found = measure(server, admin, operator, count, args.pods, args.rounds)
            result["pods"].append({"pools": count, **found})
    text = json.dumps(result, indent=2) + "\n"
    print(text)
    if args.json is not None:
        args.json.write_text(text)
    return 0


def measure(server: ApiServer, admin: Direct, operator: Direct, count: int, pods: int, rounds: int) -> Json:
    """Return the median milliseconds for creating a pod in a namespace with `count` RuntimePools, with and without the
    policy.
    """
    namespace = f"team-{count}"
    admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    with Direct(server.url, ADMIN, namespace) as there:
        for number in range(count):
            there.create_pool(f"pool-{number}", SPEC)
    assert until(lambda: is_allowed(operator, namespace)), "the API server does not learn of the pools"
    binding = {part: admin.ask("GET", f"{BINDINGS}/{BINDING}")[part] for part in ("apiVersion", "kind", "spec")}
    taken: dict[str, list[float]] = {"with": [], "without": []}
    for turn in range(rounds):
        taken["with"] += create_pods(operator, namespace, f"w{turn}", pods)
        admin.ask("DELETE", f"{BINDINGS}/{BINDING}")
        assert until(lambda: is_allowed(operator, EMPTY)), "the policy stays in force"
        taken["without"] += create_pods(operator, namespace, f"o{turn}", pods)
        admin.ask("POST", BINDINGS, {**binding, "metadata": {"name": BINDING}})
        assert until(lambda: not is_allowed(operator, EMPTY)), "the policy does not come into force"
    medians = {f"{name}_ms": round(statistics.median(values), 2) for name, values in taken.items()}
    return {**medians, "more_ms": round(medians["with_ms"] - medians["without_ms"], 2), "samples": pods * rounds}


def create_pods(operator: Direct, namespace: str, mark: str, count: int) -> list[float]:
    """Create pods one after another, and return the milliseconds of each."""
    taken = []
    for number in range(count):
        body = pod_in(namespace, f"{mark}-{number}")
        began = time.perf_counter()
        operator.ask("POST", f"/api/v1/namespaces/{namespace}/pods", body)
        taken.append(1000 * (time.perf_counter() - began))
    return taken


def is_allowed(operator: Direct, namespace: str) -> bool:
    """Return whether the API server accepts a pod of a pool in a dry run. It applies changed objects and policies with
    a delay, so callers ask again.
    """
    try:
        operator.ask("POST", f"/api/v1/namespaces/{namespace}/pods", pod_in(namespace, "probe"), dryRun="All")
    except Refused:
        return False
    return True


def pod_in(namespace: str, suffix: str) -> Json:
    """Return a pod of a pool as the operator creates it."""
    pool = read_pool(model("pool-0") | {"kind": "RuntimePool", "spec": SPEC})
    pod = build_host(pool, Image("registry.example/runtime:1"), HostKey(b"o" * 32), suffix)
    pod["metadata"]["namespace"] = namespace
    return pod


if __name__ == "__main__":
    sys.exit(main())
