"""A pool of many hosts that report constantly: its cost for the operator, and the age of the planner's data."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from operator_support.apiserver import FIRST, ApiServer, until
from operator_support.direct import Direct
from operator_support.fleet import counted, create
from operator_support.process import Running, running_operator

from control_plane.load import peak_mib, usage
from control_plane.stand_in import address
from plimsoll_operator.build.host import FILE
from plimsoll_operator.spec.identity import HOST_PORT, POOL_KIND, selector

POOL = "shared"
NEWS_SECONDS = 10.0
LIMIT_SECONDS = 300.0
BREATH_SECONDS = 15.0
AGE, PLANNING = "plimsoll_operator_report_age_seconds", "plimsoll_operator_plan_seconds"
Json = dict[str, Any]


def measure(server: ApiServer, direct: Direct, count: int, models: int, seconds: float) -> Json:
    """Place `models` models on `count` hosts, then watch the operator for `seconds`. `direct` is a client in their
    namespace.
    """
    keys = server.folder / "keys"
    keys.mkdir()
    (keys / FILE).write_bytes(b"k" * 32)
    with (
        _stand_in(count) as hosts,
        running_operator(server, FIRST, server.folder, namespace=None, more=["--host-keys", str(keys)]) as operator,
    ):
        began = time.monotonic()
        placing = _place(server, direct, count, models)
        placing["operator_cpu_seconds"] = usage({"operator": operator.process.pid}).seconds["operator"]
        placing["seconds"] = round(time.monotonic() - began, 1)
        time.sleep(BREATH_SECONDS)
        pids = {**server.pids, "operator": operator.process.pid, "hosts": hosts}
        found = _watch(server, operator, pids, seconds)
        stored = list(direct.hosts().values())
        behind = _behind(stored, count)
    return {
        "hosts": count,
        "hosts_with_models": sum(bool(_models(item)) for item in stored),
        "models": models,
        "news_a_second": count / NEWS_SECONDS,
        "placing": placing,
        **found,
        "reports_behind": behind,
    }


@contextmanager
def _stand_in(count: int) -> Iterator[int]:
    """Run the fake hosts and yield the id of their process."""
    command = [sys.executable, "-m", "control_plane.stand_in", "--count", str(count), "--seconds", str(NEWS_SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n", "the hosts do not start"
            yield process.pid
        finally:
            process.kill()


def _place(server: ApiServer, direct: Direct, count: int, models: int) -> Json:
    """Create the pool, mark its pods as running, create the models, and wait until the hosts list all of them. Return
    the seconds from the creation of the last model until then. The models are pinned, because from disk alone the
    planner would place all of them on a few hosts.
    """
    pool = {"replicas": count, "resources": {"memory": "2Gi"}, "memory": {"sleepers": "1Gi"}}
    direct.create_pool(POOL, pool)
    assert until(lambda: len(_pods(direct)) == count, LIMIT_SECONDS), "not every pod of the pool is made"
    for number, pod in enumerate(_pods(direct)):
        direct.bind(pod, f"node-{number}")
        ready = {"type": "Ready", "status": "True"}
        addresses = {"podIP": address(number), "podIPs": [{"ip": address(number)}]}
        direct.write_status(pod, {"phase": "Running", **addresses, "conditions": [ready]})
    names = [f"pooled-{number}" for number in range(models)]
    asyncio.run(create(server, direct.namespace, names, placement={"pool": POOL, "pinned": True}))
    made = time.monotonic()
    assert until(lambda: sum(len(_report(n)["models"]) for n in range(count)) >= models, LIMIT_SECONDS), (
        "not all placed"
    )
    return {"placed_after_the_last_was_made_seconds": round(time.monotonic() - made, 1)}


def _pods(direct: Direct) -> list[Json]:
    path = f"/api/v1/namespaces/{direct.namespace}/pods"
    found: list[Json] = direct.ask("GET", path, labelSelector=selector(POOL, kind=POOL_KIND))["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def _placed(count: int) -> int:
    """Return the number of awake models (`Resident`) on the first `count` hosts."""
    return sum(entry["state"] == "Resident" for number in range(count) for entry in _report(number)["models"])


def _report(number: int) -> Json:
    url = f"http://{address(number)}:{HOST_PORT}/host/v1/report?after=-1&wait=0"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: Json = json.load(answer)
    return found


def _watch(server: ApiServer, operator: Running, pids: dict[str, int], seconds: float) -> Json:
    asked, before = len(server.requests(FIRST)), usage(pids)
    marks = operator.metrics(AGE), operator.metrics(PLANNING)
    time.sleep(seconds)
    used = before.until(usage(pids))
    ages, plans = operator.metrics(AGE), operator.metrics(PLANNING)
    requests = server.requests(FIRST)[asked:]
    hosts = [event for event in requests if (event.get("objectRef") or {}).get("resource") == "modelhosts"]
    return {
        "seconds": seconds,
        "cpu_percent": {name: round(100 * value / seconds, 1) for name, value in used.items()},
        "operator_peak_mib": peak_mib(operator.process.pid),
        "requests": dict(sorted(counted(requests).items())),
        "modelhost_writes_a_second": {
            "mean": round(len(hosts) / seconds, 1),
            "most": max(Counter(event["requestReceivedTimestamp"][:19] for event in hosts).values(), default=0),
        },
        "plans": _histogram(marks[1], plans, PLANNING),
        "age_of_oldest_report_seconds": _histogram(marks[0], ages, AGE),
    }


def _histogram(before: dict[str, float], after: dict[str, float], name: str) -> Json:
    """Return count and mean of the values that a histogram gained between two readings, and the upper bounds of the
    Prometheus buckets that contain 99 % and 100 % of them.
    """
    gained = {key: value - before.get(key, 0.0) for key, value in after.items()}
    count = gained[f"{name}_count"]
    buckets = [(key.split('"')[1], value) for key, value in gained.items() if key.startswith(f"{name}_bucket")]
    return {
        "count": int(count),
        "mean": round(gained[f"{name}_sum"] / max(1.0, count), 4),
        "p99_below": next(bound for bound, value in buckets if value >= 0.99 * count),
        "all_below": next(bound for bound, value in buckets if value >= count),
    }


def _models(host: Json) -> list[Json]:
    """Return the models of a ModelHost."""
    found: list[Json] = host["status"]["models"]
    return found


def _behind(stored: Iterable[Json], count: int) -> Json:
    """Compare stored ModelHosts with reports that the hosts give afterwards. Return the number of hosts whose ModelHost
    is older, and the most state changes that one lacks.
    """
    known = {str(item["status"]["instance"]): int(item["status"]["sequence"]) for item in stored}
    found = [_report(number) for number in range(count)]
    behind = [max(0, report["sequence"] - known[report["instance"]]) for report in found]
    return {"hosts": sum(gap > 0 for gap in behind), "most": max(behind)}
