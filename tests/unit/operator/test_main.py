"""How the process ends, and what its health says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import aiohttp
import pytest
from operator_support.objects import EPOCH, model
from prometheus_client import generate_latest

from plimsoll_operator import main as module
from plimsoll_operator.api import Api, ApiError, NoClusterError
from plimsoll_operator.health import HealthError, serve_health
from plimsoll_operator.identity import Object, ObjectKey
from plimsoll_operator.lease import Lease, LeaseLostError
from plimsoll_operator.main import main
from plimsoll_operator.options import parse_options
from plimsoll_operator.rights import Right
from plimsoll_operator.watch import WatchError

SOURCE = {"source": "demo://gemma-3-270m"}
LEAST = ["--runtime-image", "reg/rt:1", "--lease-namespace", "system"]


async def ending(error: BaseException) -> int:
    async def run() -> None:
        async with asyncio.TaskGroup():
            raise error

    return await module._end_of(asyncio.create_task(run()))


@pytest.mark.parametrize("error", [LeaseLostError("lost"), WatchError("ended")])
async def test_what_ends_it_for_good_is_told(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert await ending(error) == 1
    assert str(error) in caplog.text


async def test_a_signal_is_a_good_end() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    assert await module._end_of(task) == 0


async def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await ending(ValueError("a bug"))
    assert raised.group_contains(ValueError)


def test_without_a_cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def connect() -> None:
        raise NoClusterError("neither inside a pod nor with a usable kubeconfig")

    monkeypatch.setattr(module, "connect", connect)
    assert main(LEAST) == 1
    assert capsys.readouterr().err == "plimsoll-operator: neither inside a pod nor with a usable kubeconfig\n"


async def test_health() -> None:
    live, trouble = True, ""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    runner = await serve_health(port, lambda: live, lambda: trouble)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            assert [await status(session, path) for path in ("/live", "/health", "/metrics")] == [200, 200, 200]
            live = False
            assert [await status(session, path) for path in ("/live", "/health")] == [503, 200]
            live, trouble = True, "nobody leads"
            assert [await status(session, path) for path in ("/live", "/health", "/metrics")] == [200, 503, 200]
            async with session.get("/health") as answer:
                assert await answer.text() == "nobody leads\n"
        with pytest.raises(HealthError, match=f"port {port} .*choose another --health-port"):
            await serve_health(port, lambda: True, str)
    finally:
        await runner.cleanup()


class Forbidding(Api):
    """Everything is there, but the Lease cannot be had."""

    def __init__(self) -> None:
        pass

    async def serves_models(self) -> bool:
        return True

    async def may(self, right: Right, namespace: str | None, name: str = "") -> bool:
        return True

    async def lease(self, key: ObjectKey) -> Object | None:
        raise ApiError(403, "leases is forbidden")


async def test_an_operator_that_sees_no_leader_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "Lease", partial(Lease, clock=lambda: now))
    operator = module.Operator(parse_options(LEAST), Forbidding(), "us", "us")
    assert "not known yet" in operator.trouble()
    running = asyncio.create_task(operator.run(lambda: None))
    for _ in range(50):
        await asyncio.sleep(0)
    assert operator.trouble() == ""
    now = module.LEADERLESS_SECONDS + 1
    assert operator.trouble() == "no operator has been seen to hold the Lease system/plimsoll-operator for 61 s"
    assert "plimsoll_operator_leaderless_seconds 61.0" in generate_latest().decode()
    assert operator.is_live(), "starting it again would not help"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class TwoModels(Api):
    """Two objects that claim one name. The first pass over the older one never gets an answer."""

    def __init__(self) -> None:
        self.items = {
            name: model(name, uid=name, created=EPOCH + timedelta(seconds=age), model={**SOURCE, "servedNames": ["g"]})
            for age, name in enumerate(("older", "newer"))
        }
        self.told = asyncio.Event()
        self.status: dict[str, Any] = {}
        self.stored: Any = {"metadata": {"name": "l", "namespace": "system", "uid": "1", "resourceVersion": "1"}}

    async def serves_models(self) -> bool:
        return True

    async def may(self, right: Right, namespace: str | None, name: str = "") -> bool:
        return True

    async def lease(self, key: ObjectKey) -> Object | None:
        return dict(self.stored)

    async def replace_lease(self, lease: Object) -> Object:
        self.stored = lease
        return lease

    async def models(self, namespace: str | None) -> list[Object]:
        return list(self.items.values())

    async def model(self, key: ObjectKey) -> Object | None:
        if key.name == "older":
            await asyncio.Event().wait()
        return self.items[key.name]

    async def pods(self, key: ObjectKey) -> list[Object]:
        return []

    async def service(self, key: ObjectKey) -> Object | None:
        return None

    async def create_pod(self, pod: Object) -> None:
        pass

    async def apply_service(self, service: Object) -> None:
        pass

    async def create_event(self, event: Object) -> None:
        pass

    async def apply_status(self, item: Object, status: Mapping[str, Any]) -> None:
        self.status = dict(status)
        self.told.set()


async def test_every_claim_to_a_name_is_known_before_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "watch", watch)
    cluster = TwoModels()
    running = asyncio.create_task(module.Operator(parse_options(LEAST), cluster, "us", "us").run(lambda: None))
    try:
        await asyncio.wait_for(cluster.told.wait(), 20)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    reasons = {c["type"]: c["reason"] for c in cluster.status["conditions"]}
    assert (reasons["Routable"], cluster.status["servedNames"]) == ("ServedNameTaken", [])


async def status(session: aiohttp.ClientSession, path: str) -> int:
    async with session.get(path) as answer:
        return answer.status
