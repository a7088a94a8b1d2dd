"""`make bench-control-plane`: many ModelDeployments on etcd and a real kube-apiserver, without nodes.

Measures how long the operator takes to settle them (status of the current spec written, pods created), its requests to
the API server once they are settled, its restart after a kill, the cost of a pool of reporting hosts, and the cost of a
pod's change for the gateway. Each number of models has its own API server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from operator_support.apiserver import ADMIN, FIRST, ApiServer, Missing, Programs, find_programs, until
from operator_support.direct import Direct
from operator_support.fleet import annotate, counted, create, wait_settled
from operator_support.installed import install
from operator_support.process import Running, lease, running_operator
from operator_support.recording import connect

from control_plane import hosts, table
from control_plane.load import peak_mib, resident_mib, usage
from provenance import provenance

PASSES = 'plimsoll_operator_reconciles_total{kind="ModelDeployment"}'
LEADER, QUEUE = "plimsoll_operator_leader", "plimsoll_operator_queue"
NAMESPACE = "team"
NO_DEADLINE = {"rollout": {"progressDeadlineSeconds": 86_400}}
"""No pod becomes ready here: with the default deadline of 10 minutes every status would change during the settled
minutes.
"""
POOLED = 10
"""Models per host."""
LIMIT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run. `models`: numbers of models, each measured on its own API server; `settled_seconds`: how long
    to watch the settled operator; `hosts`: of the pool, 0 for none.
    """

    models: tuple[int, ...]
    settled_seconds: float
    hosts: int
    json: Path | None


def main() -> int:
    """Measure, print and write. Return 2 if etcd or kube-apiserver is missing."""
    chosen = _options()
    try:
        programs = find_programs()
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 2
    versions = {"kubernetes": programs.kube.parent.name.removeprefix("kube-")}
    result: dict[str, Any] = {"run": {**provenance(), **versions}, "operator": []}
    for count in chosen.models:
        with _server(programs) as server:
            result["operator"].append({"models": count, **_loads(), **measure(server, count, chosen.settled_seconds)})
    if chosen.hosts:
        with _server(programs) as server, _direct(server) as direct:
            found = hosts.measure(server, direct, chosen.hosts, POOLED * chosen.hosts, chosen.settled_seconds)
            result["pool"] = {**_loads(), **found}
    result["gateway_table"] = table.measure(chosen.models[0])
    text = json.dumps(result, indent=2) + "\n"
    print(text)
    if chosen.json is not None:
        chosen.json.write_text(text)
    return 0


@contextmanager
def _server(programs: Programs) -> Iterator[ApiServer]:
    """Run an API server with the chart's objects, the namespace of the models, and the operator's Lease."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as folder, ApiServer(programs, Path(folder)) as server:
        install(server)
        with _direct(server) as admin:
            admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            with lease(admin):
                yield server


def _direct(server: ApiServer) -> Direct:
    return Direct(server.url, ADMIN, NAMESPACE)


def _loads() -> dict[str, Any]:
    """Return the machine's load over 1, 5 and 15 minutes, because wall time means little on a busy machine."""
    return {"load_average_before": [round(load, 1) for load in os.getloadavg()]}


def measure(server: ApiServer, count: int, settled_seconds: float) -> dict[str, Any]:
    """Measure the operator with this number of models."""
    with running_operator(server, FIRST, server.folder, namespace=None) as operator:
        assert until(lambda: operator.metric(LEADER) == 1), "the operator does not lead"
        pids = {**server.pids, "operator": operator.process.pid}
        settling = asyncio.run(_settle(server, pids, count))
        settled = _watch_settled(server, pids, settled_seconds)
        settled["resident_mib"] = {name: resident_mib(pid) for name, pid in pids.items()}
        settled["operator_peak_mib"] = peak_mib(operator.process.pid)
        event = _cpu_of_an_event(server, operator, count)
    return {"settling": settling, "settled": settled, "event": event, "restart": _restart(server, count)}


async def _settle(server: ApiServer, pids: dict[str, int], count: int) -> dict[str, Any]:
    before, began = usage(pids), time.monotonic()
    async with await connect(server.kubeconfig(ADMIN)) as connection:
        waiting = asyncio.create_task(wait_settled(connection, NAMESPACE, count, LIMIT_SECONDS))
        await create(server, NAMESPACE, [f"model-{number}" for number in range(count)], **NO_DEADLINE)
        made = time.monotonic()
        await waiting
    return {
        "create_seconds": round(made - began, 2),
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": before.until(usage(pids)),
        "requests": dict(sorted(counted(server.requests(FIRST)).items())),
    }


def _watch_settled(server: ApiServer, pids: dict[str, int], seconds: float) -> dict[str, Any]:
    """After a short wait for the last responses, return the CPU time and the requests of `seconds` in which nothing
    changes.
    """
    time.sleep(5)
    asked, before = len(server.requests(FIRST)), usage(pids)
    time.sleep(seconds)
    used, requests = before.until(usage(pids)), server.requests(FIRST)[asked:]
    return {
        "seconds": seconds,
        "cpu_seconds": used,
        "cpu_percent": {name: round(100 * value / seconds, 2) for name, value in used.items()},
        "requests": dict(sorted(counted(requests).items())),
    }


def _cpu_of_an_event(server: ApiServer, operator: Running, count: int) -> dict[str, Any]:
    """Return the operator's CPU milliseconds for an event that needs no reconcile: each ModelDeployment is annotated
    once. `passes`: number of reconciles that ran nevertheless.
    """
    pids = {"operator": operator.process.pid}
    before, passes = usage(pids), operator.metric(PASSES)
    asyncio.run(annotate(server, NAMESPACE, [f"model-{number}" for number in range(count)]))
    time.sleep(3)
    used = before.until(usage(pids))["operator"]
    return {"events": count, "passes": operator.metric(PASSES) - passes, "cpu_ms": round(1000 * used / count, 3)}


def _restart(server: ApiServer, count: int) -> dict[str, Any]:
    """Start the operator again under the same pod name, like the kubelet after a kill, so that the Lease is still its
    own. Return the seconds, CPU time, peak memory and requests until it has reconciled every object.
    """
    asked, began = len(server.requests(FIRST)), time.monotonic()
    with running_operator(server, FIRST, server.folder, namespace=None) as operator:
        assert until(lambda: _is_through(operator, count), LIMIT_SECONDS), "not every object had its pass"
        seconds = time.monotonic() - began
        used = usage({"operator": operator.process.pid}).seconds["operator"]
        peak = peak_mib(operator.process.pid)
        requests = server.requests(FIRST)[asked:]
    return {
        "seconds": round(seconds, 2),
        "operator_cpu_seconds": round(used, 2),
        "operator_peak_mib": peak,
        "requests": dict(sorted(counted(requests).items())),
    }


def _is_through(operator: Running, count: int) -> bool:
    return operator.metric(PASSES) >= count and operator.metric(QUEUE) == 0


def _options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--models", type=int, nargs="+", default=[1000, 10000], help="how many (default 1000 10000)")
    parser.add_argument("--hosts", type=int, default=100, help="of the pool; 0 for none (default %(default)s)")
    parser.add_argument("--settled-seconds", type=float, default=130, help="how long to watch (default %(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result, with hardware, versions, command")
    args = parser.parse_args()
    if min(args.models) < 1 or args.settled_seconds <= 0 or not 0 <= args.hosts <= 1000:
        parser.error("--models must be at least 1, --settled-seconds more than 0, --hosts 0 to 1000")
    return Options(tuple(args.models), args.settled_seconds, args.hosts, args.json)


if __name__ == "__main__":
    sys.exit(main())
