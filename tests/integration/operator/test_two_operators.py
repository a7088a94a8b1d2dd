"""Two real processes: only the holder of the Lease writes, even after it was suspended and continues."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from operator_support.apiserver import FIRST, SECOND, ApiServer, until
from operator_support.direct import Direct
from operator_support.process import LEASE, LEASES, running_operator

WAIT_SECONDS = 120.0


@contextmanager
def operator(server: ApiServer, direct: Direct, user: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run an operator process in the test's namespace."""
    with running_operator(server, user, folder, namespace=direct.namespace) as running:
        yield running.process


def holder(direct: Direct) -> str:
    spec = direct.ask("GET", f"{LEASES}/{LEASE}").get("spec") or {}
    return str(spec.get("holderIdentity") or "")


def changes(server: ApiServer, direct: Direct, user: str) -> list[str]:
    """Return the resources that a user wrote in the test's namespace, without Leases."""
    targets = [event["objectRef"] for event in server.writes(user)]
    return [t["resource"] for t in targets if t.get("namespace") == direct.namespace and t["resource"] != "leases"]


@pytest.mark.long
@pytest.mark.usefixtures("lease")
def test_only_the_holder_writes(server: ApiServer, direct: Direct, tmp_path: Path) -> None:
    with operator(server, direct, FIRST, tmp_path) as first:
        assert until(lambda: holder(direct) == FIRST, WAIT_SECONDS)
        with operator(server, direct, SECOND, tmp_path) as second:
            direct.create_model("m", {"model": {"source": "demo://gemma-3-270m"}})
            assert until(lambda: _is_ready(direct, "m"), WAIT_SECONDS)
            assert "pods" in changes(server, direct, FIRST)
            assert changes(server, direct, SECOND) == []

            first.send_signal(signal.SIGSTOP)
            direct.create_model("n", {"model": {"source": "demo://gemma-3-270m"}})
            assert until(lambda: holder(direct) == SECOND, WAIT_SECONDS)
            assert until(lambda: _is_ready(direct, "n"), WAIT_SECONDS)
            before = changes(server, direct, FIRST)
            first.send_signal(signal.SIGCONT)
            assert first.wait(WAIT_SECONDS) == 1, "who lost the Lease ends, to be started again"
            assert changes(server, direct, FIRST) == before
            assert len(direct.pods("n")) == 1

            second.send_signal(signal.SIGTERM)
            assert second.wait(WAIT_SECONDS) == 0
            assert holder(direct) == "", "the next one need not wait"


def _is_ready(direct: Direct, name: str) -> bool:
    """Play the kubelet, and return whether the object is ready."""
    direct.make_ready(name)
    conditions = direct.model(name).get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


@pytest.mark.long
@pytest.mark.usefixtures("lease")
def test_a_lease_that_is_deleted_is_made_and_taken(server: ApiServer, direct: Direct, tmp_path: Path) -> None:
    direct.ask("DELETE", f"{LEASES}/{LEASE}")
    with operator(server, direct, FIRST, tmp_path):
        assert until(lambda: _holders(direct) == [FIRST], WAIT_SECONDS)


def _holders(direct: Direct) -> list[str]:
    """Return the holders of the Leases in the release's namespace."""
    return [(item.get("spec") or {}).get("holderIdentity", "") for item in direct.ask("GET", LEASES)["items"]]


@pytest.mark.usefixtures("lease")
def test_the_process_itself_does_not_loop(server: ApiServer, direct: Direct, tmp_path: Path) -> None:
    """Changes by its own writes must not cause further writes."""
    with operator(server, direct, FIRST, tmp_path):
        direct.create_model("good", {"model": {"source": "demo://gemma-3-270m"}})
        direct.create_model(
            "bad", {"model": {"source": "demo://x"}, "template": {"priorityClassName": "no-such-class"}}
        )
        assert until(lambda: _is_ready(direct, "good"), WAIT_SECONDS)
        assert until(lambda: "Rejected" in str(direct.model("bad").get("status")), WAIT_SECONDS)
        marker = direct.create_model("last", {"model": {"source": "demo://gemma-3-270m"}})
        assert until(lambda: "status" in direct.model(marker["metadata"]["name"]), WAIT_SECONDS)
        assert len(changes(server, direct, FIRST)) < 40, changes(server, direct, FIRST)
