"""The operator's work from start to stop, without kopf."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from operator_support import virtual_time
from operator_support.objects import EPOCH, model
from prometheus_client import generate_latest

from plimsoll_operator.controller import controller as module
from plimsoll_operator.controller.controller import Controller
from plimsoll_operator.controller.options import Options, parse_options
from plimsoll_operator.kube.api import Api, ApiError
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.leader_election import Lease
from plimsoll_operator.kube.rbac import Right
from plimsoll_operator.kube.result import ReconcileResult
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.upgrade_queue import UpgradeQueue
from plimsoll_operator.spec.identity import KIND, Object, ObjectKey
from plimsoll_operator.spec.model_deployment import read_spec
from plimsoll_operator.status.conditions import PROGRESSING
from plimsoll_operator.status.name_conflicts import NameConflict
from plimsoll_operator.status.reasons import Reason

SOURCE = {"source": "demo://gemma-3-270m"}


def options(*more: str) -> Options:
    least = ["--runtime-image", "reg/rt:1", "--lease-namespace", "system", "--health-port", "0"]
    return parse_options([*least, *more])


class Forbidding(Api):
    """Grants all rights, but rejects requests for the Lease."""

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
    controller = Controller(options(), Forbidding(), follow_two, ("us", "us"))
    assert "have not been checked" in controller.trouble()
    running = asyncio.create_task(controller.start())
    async with asyncio.timeout(60):
        while controller.trouble():
            await asyncio.sleep(0)
    now = module.LEADERLESS_SECONDS + 1
    assert controller.trouble() == "no operator has held the Lease system/plimsoll-operator for 61 s"
    assert "plimsoll_operator_leaderless_seconds 61.0" in generate_latest().decode()
    assert controller.is_live(), "starting it again would not help"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class Obtainable(Forbidding):
    """The Lease is free."""

    def __init__(self) -> None:
        self.stored: Any = {"metadata": {"name": "l", "namespace": "system", "uid": "1", "resourceVersion": "1"}}

    async def lease(self, key: ObjectKey) -> Object | None:
        return dict(self.stored)

    async def replace_lease(self, lease: Object) -> Object:
        self.stored = lease
        return lease


async def follow_two(stores: Stores) -> None:
    """List two models that claim one name, the younger first. The older one is rolling to a new image."""
    rolling = {"type": PROGRESSING, "status": "True", "reason": Reason.ROLLING}
    for store in stores.all():
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
    async def follow(stores: Stores) -> None:
        for _ in range(module.TROUBLED):
            assert "watches fail" not in controller.trouble(), "one failure is none"
            stores.pods.part_of("team").fail("pods of all namespaces: the API server answered 403: forbidden")
        told.set()

    told = asyncio.Event()
    controller = Controller(options(), Obtainable(), follow, ("us", "us"))
    await controller.start()
    try:
        await asyncio.wait_for(told.wait(), 60)
        assert controller.trouble() == ("watches fail: pods of all namespaces: the API server answered 403: forbidden")
        assert "plimsoll_operator_unfollowed 1.0" in generate_latest().decode()
    finally:
        await controller.stop()


class FirstPass:
    """Replaces the reconciler, and records what is known at its first reconcile."""

    conflicts: asyncio.Future[tuple[NameConflict, ...]]
    has_turn: bool

    def __init__(self, names: NameRegistry, upgrades: UpgradeQueue) -> None:
        self._names, self._upgrades = names, upgrades

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        if not self.conflicts.done():
            newer = read_spec(
                model("newer", created=EPOCH + timedelta(seconds=1), model={**SOURCE, "servedNames": ["g"]})
            )
            FirstPass.has_turn = self._upgrades.take(newer.key)
            self.conflicts.set_result(self._names.conflicts(newer))
        return ReconcileResult()


async def test_claims_to_names_and_turns_are_known_before_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(context: ReconcileContext, upgrades: UpgradeQueue, **_: Any) -> FirstPass:
        return FirstPass(context.names, upgrades)

    monkeypatch.setattr(module, "ModelReconciler", make)
    FirstPass.conflicts = asyncio.get_running_loop().create_future()
    controller = Controller(options("--max-rolling-models", "1"), Obtainable(), follow_two, ("us", "us"))
    await controller.start()
    try:
        assert await asyncio.wait_for(FirstPass.conflicts, 60) == (
            NameConflict("g", Reason.SERVED_NAME_TAKEN, "by team/older"),
        )
    finally:
        await controller.stop()
    assert not FirstPass.has_turn


class HeldByAnother(Forbidding):
    """Another operator holds the Lease, and renews it."""

    async def lease(self, key: ObjectKey) -> Object | None:
        now = asyncio.get_running_loop().time()
        metadata = {"name": "l", "namespace": "system", "uid": "1", "resourceVersion": str(int(now // 3))}
        return {"metadata": metadata, "spec": {"holderIdentity": "another", "leaseDurationSeconds": 20}}


def test_a_standby_lives_for_as_long_as_another_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chart's probes restart an operator whose /live or /health fails for a minute."""

    async def serve(*_: Any) -> web.AppRunner:
        return web.AppRunner(web.Application())

    async def stand_by() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(module, "serve_health", serve)
        monkeypatch.setattr(module, "Lease", partial(Lease, clock=loop.time))
        controller = Controller(options(), HeldByAnother(), follow_two, ("us", "us"))
        starting = asyncio.create_task(controller.start())
        await asyncio.sleep(1)
        for _ in range(60):
            assert (controller.is_live(), controller.trouble()) == (True, "")
            await asyncio.sleep(10)
        assert loop.time() > 600
        assert not starting.done(), "kopf watches nothing until it is"
        starting.cancel()
        await asyncio.wait({starting})

    virtual_time.run(stand_by())
