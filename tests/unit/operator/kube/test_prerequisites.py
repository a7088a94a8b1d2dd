"""An operator that cannot work says immediately what is missing."""

from __future__ import annotations

import asyncio

import pytest
from operator_support.chart_rights import lease_verbs

from plimsoll_operator.controller import main as module
from plimsoll_operator.kube import prerequisites
from plimsoll_operator.kube.api import Api, ApiError
from plimsoll_operator.kube.prerequisites import PrerequisiteError, await_prerequisites, may_see_nodes, missing
from plimsoll_operator.kube.rbac import LEASE_RIGHTS, Right
from plimsoll_operator.spec.identity import ObjectKey

LEASE = ObjectKey("system", "plimsoll-operator")
LEAST = ["--runtime-image", "reg/rt:1", "--lease-namespace", "system"]


class Cluster(Api):
    """`refused` are missing rights; `errors` are raised first."""

    def __init__(self, *refused: tuple[str, str | None], serves: bool = True) -> None:
        self.refused, self.serves = set(refused), serves
        self.errors: list[ApiError] = []
        self.asked: list[tuple[str, str | None, str]] = []

    async def serves_models(self) -> bool:
        if self.errors:
            raise self.errors.pop(0)
        return self.serves

    async def may(self, right: Right, namespace: str | None, name: str = "") -> bool:
        _, kind, verb = right
        self.asked.append((f"{verb} {kind}", namespace, name))
        return (f"{verb} {kind}", namespace) not in self.refused


async def test_nothing_is_missing() -> None:
    cluster = Cluster()
    assert await missing(cluster, ["team-a", "team-b"], LEASE) == []
    assert ("create pods", "team-a", "") in cluster.asked
    assert ("create pods", "team-b", "") in cluster.asked
    assert ("update leases", "system", "plimsoll-operator") in cluster.asked
    assert ("create leases", "system", "") in cluster.asked, "a rule with a name never allows create"
    assert await missing(cluster, None, LEASE) == []
    assert ("create pods", None, "") in cluster.asked


async def test_the_record_of_served_names_is_asked_for_by_its_name() -> None:
    record, cluster = ObjectKey("system", "names"), Cluster(("patch configmaps", "system"))
    assert await missing(cluster, None, LEASE, record) == [
        "the operator's ServiceAccount lacks these rights on the ConfigMap system/names: patch configmaps; "
        "grant the rights in the chart's roles"
    ]
    assert ("watch configmaps", "system", "names") in cluster.asked


def test_the_chart_gives_the_rights_on_the_lease() -> None:
    assert lease_verbs() == {verb for _, _, verb in LEASE_RIGHTS}


async def test_what_is_missing_is_named() -> None:
    assert await missing(Cluster(serves=False), None, LEASE) == [
        "the API server does not know ModelDeployments, RuntimePools, ModelHosts: apply the crds/ of this release"
    ]
    cluster = Cluster(
        ("delete pods", "team-b"), ("patch modeldeployments/status", "team-b"), ("create leases", "system")
    )
    assert await missing(cluster, ["team-a", "team-b"], LEASE) == [
        "the operator's ServiceAccount lacks these rights in namespace team-b: delete pods, "
        "patch modeldeployments/status.plimsoll.dev; grant the rights in the chart's roles",
        "the operator's ServiceAccount lacks these rights on the Lease system/plimsoll-operator: "
        "create leases.coordination.k8s.io; grant the rights in the chart's roles",
    ]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace sleep, and return the seconds slept."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept


async def test_what_is_applied_together_has_some_seconds(waits: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(PrerequisiteError, match="apply the crds/"):
        await await_prerequisites(Cluster(serves=False), None, LEASE)
    assert sum(waits) == prerequisites.PATIENCE_SECONDS
    assert caplog.records[0].levelname == "ERROR", "said at once, not at the end only"


async def test_an_outage_is_waited_out(waits: list[float]) -> None:
    cluster = Cluster()
    cluster.errors = [ApiError(None, "unreachable")] * 99
    await await_prerequisites(cluster, None, LEASE)
    assert len(waits) == 99


async def test_who_may_not_ask_goes_on(waits: list[float]) -> None:
    cluster = Cluster(serves=False)
    cluster.errors = [ApiError(403, "forbidden")]
    await await_prerequisites(cluster, None, LEASE)
    assert waits == []


@pytest.mark.parametrize("refused", [(), (("list nodes", None),), (("watch nodes", None),)])
async def test_nodes_are_looked_at_where_that_is_allowed(
    refused: tuple[tuple[str, None], ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert await may_see_nodes(Cluster(*refused)) is (not refused)
    assert ("may not list and watch nodes" in caplog.text) is bool(refused)


def test_the_process_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def run(*_: object) -> int:
        raise PrerequisiteError("the API server does not know ModelDeployments")

    monkeypatch.setattr(module, "_run", run)
    assert module.main(LEAST) == 1
    assert capsys.readouterr().err == "plimsoll-operator: the API server does not know ModelDeployments\n"
