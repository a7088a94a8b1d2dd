"""Gateways are found, polled and dropped; the clock is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from operator_support import virtual_time
from operator_support.stub_gateway import StubGateway, StubGatewayClient

from plimsoll_operator.scaling.gateways import GatewayRegistry
from plimsoll_operator.scaling.poller import DemandPoller, Gateways
from plimsoll_operator.spec.identity import ObjectKey

NOW = 1767225600.0
KEY = ObjectKey("team", "m")


def polled(change: Callable[[dict[str, StubGateway], dict[str, object]], None], seconds: float) -> GatewayRegistry:
    """Return the registry after this many seconds; from the tenth on, the network is as `change` made it."""
    registry = GatewayRegistry()
    gateways = {address: StubGateway(f"g-{address}") for address in ("198.18.0.1", "198.18.0.2")}
    network: dict[str, object] = {"names": True}

    async def resolve(name: str, port: int) -> list[str]:
        assert (name, port) == ("gateways", 8081)
        if not network["names"]:
            raise OSError(-3, "Temporary failure in name resolution")
        return sorted(gateways)

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def clock() -> float:
            return NOW + loop.time()

        for gateway in gateways.values():
            gateway.now = clock
        poller = DemandPoller(
            registry,
            Gateways("gateways", 8081),
            lambda address: StubGatewayClient(gateways[address]),
            clock=clock,
            resolve=resolve,
        )
        task = asyncio.create_task(poller.run())
        await asyncio.sleep(10)
        change(gateways, network)
        await asyncio.sleep(seconds - 10)
        task.cancel()
        await asyncio.wait({task})

    virtual_time.run(run())
    return registry


def test_every_gateway_is_asked_for_ever() -> None:
    registry = polled(lambda gateways, network: gateways["198.18.0.2"].hold(KEY, 3), 30)
    assert registry.unheard(NOW + 30) == ""
    held = {answer.instance: [model.held for model in answer.models] for answer in registry.believed(NOW + 30)}
    assert held == {"g-198.18.0.1": [], "g-198.18.0.2": [3]}


def test_one_that_fails_is_told_of_and_asked_again() -> None:
    def fail(gateways: dict[str, StubGateway], network: dict[str, object]) -> None:
        gateways["198.18.0.1"].dead = True
        asyncio.get_running_loop().call_later(20, gateways["198.18.0.1"].restart, "again")

    assert polled(fail, 25).unheard(NOW + 25) == "gateway 198.18.0.1: it is not reachable"
    after = polled(fail, 50)
    assert after.unheard(NOW + 50) == ""
    assert "again" in {answer.instance for answer in after.believed(NOW + 50)}


def test_a_name_without_answer_keeps_those_that_are_known() -> None:
    registry = polled(lambda gateways, network: network.update(names=False), 120)
    assert "cannot resolve the gateways' name gateways: Temporary failure" in registry.unheard(NOW + 120)
    assert len(registry.believed(NOW + 120)) == 2, "they are asked as before"


def test_one_that_is_gone_is_asked_no_more() -> None:
    def leave(gateways: dict[str, StubGateway], network: dict[str, object]) -> None:
        del gateways["198.18.0.1"]

    registry = polled(leave, 120)
    assert [gateway.address for gateway in registry] == ["198.18.0.2"]
    assert registry.unheard(NOW + 120) == ""
