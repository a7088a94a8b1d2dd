"""Kubelets of a pool's pods on a real API server: each pod gets a node, an address, and a host at it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from ipaddress import ip_address

from operator_support.apiserver import until
from operator_support.direct import Direct
from operator_support.objects import Json
from operator_support.stub_host import StubHost, serve

from plimsoll_operator.spec.identity import HOST_PORT, POOL_KIND, selector

SECONDS = 180.0


async def holds(true: Callable[[], bool]) -> bool:
    """Wait in another thread, because the operator runs in this one."""
    return await asyncio.to_thread(until, true, SECONDS)


class Kubelets:
    """Gives each pod of a pool a node, an address and a host at it."""

    def __init__(self, direct: Direct) -> None:
        self.direct = direct
        self.hosts: dict[str, StubHost] = {}
        self._serving = AsyncExitStack()
        self._addresses = loopback_addresses()

    async def __aenter__(self) -> Kubelets:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving.aclose()

    def pods(self, pool: str = "shared") -> list[Json]:
        path = f"/api/v1/namespaces/{self.direct.namespace}/pods"
        found: list[Json] = self.direct.ask("GET", path, labelSelector=selector(pool, kind=POOL_KIND))["items"]
        return found

    async def start(self, count: int) -> None:
        """Wait for this many pods, and start them."""
        assert await holds(lambda: len(self.pods()) >= count), f"{len(self.pods())} of {count} pods are made"
        for pod in self.pods():
            name = pod["metadata"]["name"]
            if name not in self.hosts:
                await self._start(name, pod)

    def end(self) -> None:
        """Remove deleted pods."""
        for pod in self.pods():
            if "deletionTimestamp" in pod["metadata"]:
                self.direct.end(pod)

    async def _start(self, name: str, pod: Json) -> None:
        (container,) = pod["spec"]["containers"]
        known = {entry["name"]: entry.get("value") for entry in container["env"]}
        host = self.hosts[name] = StubHost(instance=f"of-{name}", tokens=frozenset({known["PLIMSOLL_HOST_TOKENS"]}))
        address = await self._serve(host)
        self.direct.bind(pod)
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [ready]}
        self.direct.write_status(pod, status)

    async def _serve(self, host: StubHost) -> str:
        """Serve a host on the next free address, because all hosts use one port."""
        while True:
            address = next(self._addresses)
            with suppress(OSError):
                await self._serving.enter_async_context(serve(host, address, HOST_PORT))
                return address


def loopback_addresses() -> Iterator[str]:
    """Yield addresses that depend on the process, because other tests may run at the same time."""
    first = os.getpid() % 2**14 * 2**8
    return (str(ip_address("127.1.0.0") + first + number) for number in range(1, 2**8))
