"""Polls every gateway for its demand: finds gateways by DNS, and keeps one long-polling task for each."""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from plimsoll_cluster.pod_status import url_of
from plimsoll_operator.kube.polling import Polling, TooLargeError, read_bounded
from plimsoll_operator.scaling.demand import LIMIT, BadDemandError, Demand, decode_demand
from plimsoll_operator.scaling.gateways import GatewayRegistry

WAIT_SECONDS = 5.0
"""How long a gateway may delay a response without news, and so the highest age of the numbers."""
ANSWER_SECONDS = 10.0


class GatewayError(Exception):
    """The gateway could not be polled; the message says why."""


class GatewayClient:
    """The client of one gateway."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def demand(self, after: int, wait: float = WAIT_SECONDS) -> Demand:
        """Long-poll: return the report once its sequence exceeds `after`, or after `wait` seconds.

        Raise GatewayError or BadDemandError.
        """
        timeout = aiohttp.ClientTimeout(total=wait + ANSWER_SECONDS)
        query = f"?after={after}&wait={wait:g}"
        try:
            async with self._session.get(
                f"{self._url}/demand{query}", timeout=timeout, allow_redirects=False
            ) as response:
                data = await read_bounded(response, LIMIT)
        except TooLargeError as error:
            raise GatewayError(str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise GatewayError(f"it is not reachable: {error or type(error).__name__}") from error
        if response.status != 200:
            words = data[:200].decode("utf-8", "replace")
            raise GatewayError(f"GET /demand returned {response.status}: {words}")
        return decode_demand(data)


NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class Gateways:
    """A DNS name that resolves to the addresses of all gateway pods, and their metrics port."""

    name: str
    port: int


def gateways(text: str) -> Gateways:
    """Parse NAME:PORT. Raise ArgumentTypeError for other text."""
    name, colon, port = text.rpartition(":")
    if (
        not colon
        or NAME.fullmatch(name) is None
        or re.fullmatch("[0-9]{1,5}", port) is None
        or not 0 < int(port) < 65536
    ):
        raise argparse.ArgumentTypeError(
            f"{text[:64]!r} is not NAME:PORT, such as plimsoll-metrics.plimsoll-system.svc:8081"
        )
    return Gateways(name, int(port))


LONGEST_DELAY = 5.0
LOOK_SECONDS = 5.0
"""Seconds between two lookups of the gateways' addresses."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
Connect = Callable[[str], GatewayClient]


async def addresses_of(name: str, port: int) -> list[str]:
    """Resolve a DNS name; return its addresses, sorted. Raise OSError if that fails."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


def connect_to(session: aiohttp.ClientSession, port: int) -> Connect:
    """Return a function that makes clients for gateways on this port."""
    return lambda address: GatewayClient(session, url_of(address, port))


class DemandPoller:
    """Keeps the registry up to date. `resolve` and `connect` use the network. `clock`: seconds since the epoch."""

    def __init__(
        self,
        registry: GatewayRegistry,
        gateways: Gateways,
        connect: Connect,
        *,
        clock: Callable[[], float],
        resolve: Resolve = addresses_of,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._registry = registry
        self._gateways = gateways
        self._connect = connect
        self._clock = clock
        self._resolve = resolve
        self._sleep = sleep
        self._polling = Polling((GatewayError, BadDemandError), LONGEST_DELAY, sleep)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look up addresses and poll forever."""
        try:
            while True:
                await self.look()
                await self._sleep(LOOK_SECONDS)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> None:
        """Look up the gateways' addresses, start a task for each new one, and cancel those of addresses that are
        gone.
        """
        name, port = self._gateways.name, self._gateways.port
        try:
            found = await self._resolve(name, port)
        except OSError as error:
            self._registry.lose(f"cannot resolve the gateways' name {name}: {error.strerror or error}")
            self._registry.forget(self._clock())
            return
        self._registry.keep(found, self._clock())
        for address in self._tasks.keys() - set(found):
            self._tasks.pop(address).cancel()
        for address in found:
            if (task := self._tasks.get(address)) is None or task.done():
                self._tasks[address] = asyncio.create_task(self._ask(address, self._connect(address)))

    async def _ask(self, address: str, client: GatewayClient) -> None:
        await self._polling.run(
            f"the gateway at {address}",
            client.demand,
            lambda answer: self._registry.take(address, answer, self._clock()),
            lambda error: self._registry.fail(address, str(error)),
        )
