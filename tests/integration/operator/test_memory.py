"""The operator under its chart's memory limit, with about a hundred objects of maximal size."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from operator_support.apiserver import FIRST, RELEASE_NAMESPACE, ApiServer, free_port, until
from operator_support.direct import Direct

from abuse.group import MemoryGroup, NoGroupError, memory_group
from abuse.limits import chart_limit

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{RELEASE_NAMESPACE}/leases"
Process = subprocess.Popen[bytes]
LEASE = "plimsoll-operator"
OBJECTS = 200
NOTE = "x" * (100 << 10)
WAIT_SECONDS = 180.0


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    try:
        with memory_group(chart_limit("operator")) as made:
            yield made
    except NoGroupError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def operator(
    server: ApiServer, direct: Direct, group: MemoryGroup, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the operator's process with the chart's Lease."""
    direct.ask("POST", LEASES, {"metadata": {"name": LEASE}})
    options = ["--runtime-image", "registry.example/runtime:1", "--namespace", direct.namespace]
    options += ["--lease-namespace", RELEASE_NAMESPACE, "--health-port", str(free_port())]
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig(FIRST)), "POD_NAME": FIRST}
    with (tmp_path / "operator.log").open("wb") as log:
        command = group.command(sys.executable, "-m", "plimsoll_operator", *options)
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            direct.ask("DELETE", f"{LEASES}/{LEASE}")


@pytest.mark.long
def test_hundreds_of_large_objects_kill_nothing(direct: Direct, group: MemoryGroup, operator: Process) -> None:
    for number in range(OBJECTS):
        direct.create_model(f"m{number}", {"model": {"source": "demo://gemma-3-270m"}}, annotations={"note": NOTE})

    for number in range(OBJECTS):
        assert until(partial(has_status, direct, f"m{number}"), WAIT_SECONDS)
    print(f"peak {group.peak / 2**20:.0f} MiB")
    assert operator.poll() is None
    assert group.kills == 0


def has_status(direct: Direct, name: str) -> bool:
    """Return whether a reconcile of the object has ended."""
    return "conditions" in direct.model(name).get("status", {})
