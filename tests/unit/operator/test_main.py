"""How the process ends, and what its health says."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from functools import partial
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client
from operator_support.objects import EPOCH, model
from prometheus_client import generate_latest

from plimsoll_cluster.connect import NoClusterError
from plimsoll_cluster.connection import Connection
from plimsoll_cluster.store import Store
from plimsoll_operator import main as module
from plimsoll_operator.actor import NotLeaderError
from plimsoll_operator.api import PLURALS, Api, ApiError
from plimsoll_operator.common import Common
from plimsoll_operator.conditions import PROGRESSING
from plimsoll_operator.health import serve_health
from plimsoll_operator.identity import KIND, Object, ObjectKey
from plimsoll_operator.lease import Lease, LeaseLostError
from plimsoll_operator.listening import ListenError
from plimsoll_operator.main import main
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.options import parse_options
from plimsoll_operator.outcome import Outcome
from plimsoll_operator.reasons import Reason
from plimsoll_operator.rights import Right
from plimsoll_operator.spec import read_spec
from plimsoll_operator.turns import Turns

SOURCE = {"source": "demo://gemma-3-270m"}
LEAST = ["--runtime-image", "reg/rt:1", "--lease-namespace", "system"]


async def ending(error: BaseException) -> int:
    async def run() -> None:
        async with asyncio.TaskGroup():
            raise error

    return await module._end_of(asyncio.create_task(run()))


@pytest.mark.parametrize("error", [LeaseLostError("lost"), NotLeaderError("ended")])
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
        with pytest.raises(ListenError, match=f"port {port} .*choose another --health-port"):
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
    operator = module.Operator(parse_options(LEAST), Forbidding(), follow_two, "us", "us")
    assert "not known yet" in operator.trouble()
    running = asyncio.create_task(operator.run())
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


class Obtainable(Forbidding):
    """The Lease is anybody's."""

    def __init__(self) -> None:
        self.stored: Any = {"metadata": {"name": "l", "namespace": "system", "uid": "1", "resourceVersion": "1"}}

    async def lease(self, key: ObjectKey) -> Object | None:
        return dict(self.stored)

    async def replace_lease(self, lease: Object) -> Object:
        self.stored = lease
        return lease


async def follow_two(*stores: Store[Any]) -> None:
    """Lists two models that claim one name, the younger first. The older one takes a new image just now."""
    rolling = {"type": PROGRESSING, "status": "True", "reason": Reason.ROLLING}
    for store in stores:
        entries = {}
        for age, name in ((1, "newer"), (0, "older")) if store.resource.kind == KIND else ():
            found = model(
                name, uid=name, created=EPOCH + timedelta(seconds=age), model={**SOURCE, "servedNames": ["g"]}
            )
            found["metadata"]["resourceVersion"] = "7"
            entry = store.resource.entry(found | {"status": {"conditions": [] if age else [rolling]}})
            entries[entry.key] = entry
        for part in store.parts.values():
            part.end_list(part.begin_list(), entries, 7)
    await asyncio.Event().wait()


async def test_an_operator_that_hears_of_no_changes_is_not_ready() -> None:
    async def follow(*stores: Store[Any]) -> None:
        pods = next(store for store in stores if store.resource.kind == "Pod")
        for _ in range(module.TROUBLED):
            assert "not heard of" not in operator.trouble(), "one failure is none"
            pods.part_of("team").fail("pods of all namespaces: the API server answered 403: forbidden")
        told.set()

    told = asyncio.Event()
    operator = module.Operator(parse_options(LEAST), Obtainable(), follow, "us", "us")
    running = asyncio.create_task(operator.run())
    try:
        await asyncio.wait_for(told.wait(), 60)
        assert operator.trouble() == (
            "changes are not heard of: pods of all namespaces: the API server answered 403: forbidden"
        )
        assert "plimsoll_operator_unfollowed 1.0" in generate_latest().decode()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class FirstPass:
    """Stands for the Reconciler: keeps what is known when its first pass begins."""

    holders: asyncio.Future[tuple[tuple[str, str], ...]]
    has_turn: bool

    def __init__(self, names: NameRegistry, turns: Turns) -> None:
        self._names, self._turns = names, turns

    async def reconcile(self, key: ObjectKey) -> Outcome:
        if not self.holders.done():
            newer = read_spec(
                model("newer", created=EPOCH + timedelta(seconds=1), model={**SOURCE, "servedNames": ["g"]})
            )
            FirstPass.has_turn = self._turns.take(newer.key)
            self.holders.set_result(self._names.holders(newer))
        return Outcome()


async def test_claims_to_names_and_turns_are_known_before_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(common: Common, turns: Turns, **_: Any) -> FirstPass:
        return FirstPass(common.names, turns)

    monkeypatch.setattr(module, "Reconciler", make)
    FirstPass.holders = asyncio.get_running_loop().create_future()
    options = parse_options([*LEAST, "--max-rolling-models", "1"])
    running = asyncio.create_task(module.Operator(options, Obtainable(), follow_two, "us", "us").run())
    try:
        assert await asyncio.wait_for(FirstPass.holders, 60) == (("g", "team/older"),)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert not FirstPass.has_turn


class Hanging:
    """An API server on which everything is there and allowed, and whose writes end when `go` is set."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.lease: Any = {"metadata": {"name": "plimsoll-operator", "namespace": "system", "resourceVersion": "1"}}

    async def answer(self, request: web.Request) -> web.Response:
        if request.path.endswith("selfsubjectaccessreviews"):
            return web.json_response({"status": {"allowed": True}})
        if "/leases/" in request.path:
            if request.method == "PUT":
                self.lease = await request.json()
                if not self.lease["spec"]["holderIdentity"]:
                    self.said.append("released")
            return web.json_response(self.lease)
        if request.method == "GET":
            return web.json_response({"resources": [{"name": plural} for plural in PLURALS.values()]})
        self.begun.set()
        await self.go.wait()
        self.said.append("written")
        return web.json_response({}, status=500)


async def test_the_lease_is_given_back_when_what_is_being_written_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next operator may act at once, and lists what there is: a write that comes after that is not in it."""

    async def serve(*_: Any) -> web.AppRunner:
        return web.AppRunner(web.Application())

    async def follow(_: Connection, *stores: Store[Any]) -> None:
        await follow_two(*stores)

    api, app = Hanging(), web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    monkeypatch.setattr(module, "serve_health", serve)
    monkeypatch.setattr(module, "follow", follow)
    for patience in ("main.MARGIN", "api.WRITE_SECONDS", "api.LEASE_SECONDS"):
        monkeypatch.setattr(f"plimsoll_operator.{patience}", 600.0)  # nothing ends because this machine is slow
    async with TestServer(app) as server, asyncio.timeout(60):

        async def connect() -> Connection:
            return Connection(client.Configuration(host=str(server.make_url("")).rstrip("/")))

        monkeypatch.setattr(module, "connect", connect)
        running = asyncio.create_task(module._run(parse_options(LEAST)))
        await api.begun.wait()
        running.cancel()  # as the signal's handler does
        async with aiohttp.ClientSession() as session:
            for _ in range(20):  # far more than it takes to give a Lease back
                assert await status(session, str(server.make_url("/apis"))) == 200
        assert (api.said, running.done()) == ([], False)
        api.go.set()
        assert await running == 0
    assert api.said[-1] == "released"
    assert set(api.said[:-1]) == {"written"}


async def status(session: aiohttp.ClientSession, path: str) -> int:
    async with session.get(path) as answer:
        return answer.status
