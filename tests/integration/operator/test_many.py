"""Many objects: the number of the operator's requests, counted by the API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from operator_support.apiserver import ADMIN, FIRST, ApiServer, until
from operator_support.direct import Direct
from operator_support.fleet import counted, create, wait_settled
from operator_support.process import Running, running_operator
from operator_support.recording import connect

COUNT, RESYNCED = 100, 10
LIMIT_SECONDS = 240.0
KINDS = (
    "modeldeployments",
    "pods",
    "services",
    "poddisruptionbudgets",
    "controllerrevisions",
    "runtimepools",
    "modelhosts",
)
READING = {
    **{f"list {kind}": 2 if kind in ("modeldeployments", "runtimepools") else 1 for kind in KINDS},
    **{f"watch {kind}": 1 for kind in KINDS},
}
"""Lists and watches. For kinds that users write, kopf's list is followed by ours, because kopf's does not show
deletions.
"""
PASSES = 'plimsoll_operator_reconciles_total{kind="ModelDeployment"}'


SETTLING = {
    "create pods": COUNT,
    "create services": COUNT,
    "create controllerrevisions": COUNT,
    "create events": COUNT,
    "patch modeldeployments/status": COUNT,
    **READING,
}


@pytest.mark.long
@pytest.mark.usefixtures("lease")
@pytest.mark.timeout(900)
async def test_what_many_objects_cost(server: ApiServer, direct: Direct, tmp_path: Path) -> None:
    """A settled operator only renews the Lease, even at a resync; after a restart it lists and watches each kind
    once.
    """
    namespace = direct.namespace
    with running_operator(server, FIRST, tmp_path, namespace=namespace) as operator:
        async with await connect(server.kubeconfig(ADMIN)) as connection:
            await create(server, namespace, [f"m{number}" for number in range(COUNT)])
            await wait_settled(connection, namespace, COUNT, LIMIT_SECONDS)
        # The last reconcile writes events after the status that settles its object.
        assert until(lambda: counted(_requests(server, namespace)) == SETTLING), _difference(server, namespace)
        passes = operator.metric(PASSES)
        assert until(lambda: operator.metric(PASSES) >= passes + RESYNCED, LIMIT_SECONDS), (
            "objects are reconciled again"
        )
        assert counted(_requests(server, namespace)) == SETTLING, "once settled they cost nothing"
    before = counted(_requests(server, namespace))
    with running_operator(server, FIRST, tmp_path, namespace=namespace) as again:
        assert until(lambda: again.metric(PASSES) >= COUNT, LIMIT_SECONDS)
        _quiet(again)
        # kopf's watch of our kinds starts independently, perhaps after the last reconcile.
        assert until(lambda: counted(_requests(server, namespace)) - before == READING), (
            counted(_requests(server, namespace)) - before
        )


def _difference(server: ApiServer, namespace: str) -> str:
    """Return the actual and expected number of each request."""
    found = counted(_requests(server, namespace))
    return str({what: (found[what], SETTLING.get(what, 0)) for what in found.keys() | SETTLING.keys()})


def _quiet(operator: Running) -> None:
    """Wait until the queue is empty."""
    assert until(lambda: operator.metric("plimsoll_operator_queue") == 0)


def _requests(server: ApiServer, namespace: str) -> list[dict[str, Any]]:
    """Return the requests in the objects' namespace, without those for the Lease."""
    return [event for event in server.requests(FIRST) if event.get("objectRef", {}).get("namespace") == namespace]
