"""Shares are maintained even if DNS lookups are slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from operator_support.virtual_time import run

from plimsoll_gateway.admission.quota_sync.exchange import LOOK_SECONDS, Exchange
from plimsoll_gateway.admission.quota_sync.node import TURN_SECONDS
from plimsoll_gateway.admission.quota_sync.peer_addresses import PeerAddress


class FakeRoster:
    """No other gateway exists."""

    members = ("10.0.0.1:8082",)


class FakeNode:
    """Records its periodic work and the listed addresses."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.membership = FakeRoster()
        self.own = "10.0.0.1:8082"
        self.joined = True
        self.hurry: Callable[[str], None] = print

    def list(self, addresses: frozenset[str], _: float) -> None:
        self.said += ["list", *addresses]

    def turn(self, _: float) -> None:
        self.said.append("turn")


def test_a_slow_look_keeps_nobody_from_a_turn_but_for_the_first() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        node = FakeNode()
        exchange = Exchange(node, "me", [PeerAddress("gateways", 8082)], lambda: [b"x" * 32], loop.time)  # type: ignore[arg-type]
        answers: list[asyncio.Future[frozenset[str]]] = [loop.create_future() for _ in range(3)]
        looks = iter(answers)

        def look() -> Coroutine[Any, Any, frozenset[str]]:
            async def wait() -> frozenset[str]:
                return await next(looks)

            return wait()

        exchange._names.look = look  # type: ignore[method-assign]
        task = asyncio.create_task(exchange.keep_up())
        await asyncio.sleep(10 * TURN_SECONDS)
        assert node.said == []
        answers[0].set_result(frozenset(["a"]))
        await asyncio.sleep(LOOK_SECONDS + 10 * TURN_SECONDS)
        assert node.said[:3] == ["list", "a", "turn"]
        assert node.said.count("turn") >= 10
        assert node.said.count("list") == 1
        assert exchange.joined.is_set()
        answers[1].set_result(frozenset(["b"]))
        await asyncio.sleep(TURN_SECONDS)
        assert node.said.count("list") == 2
        assert "b" in node.said
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())
