"""Asks every gateway for its demand, again and again: found by DNS, one task each, questions that wait for news."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import aiohttp

from plimsoll_cluster.pod_status import url_of
from plimsoll_operator.polling import Polling
from plimsoll_operator.scaling.book import GatewayBook
from plimsoll_operator.scaling.client import GatewayClient, GatewayError
from plimsoll_operator.scaling.demand import BadDemandError
from plimsoll_operator.scaling.options import Gateways

LONGEST_DELAY = 5.0
LOOK_SECONDS = 5.0
"""Between two looks at which gateways there are."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
Connect = Callable[[str], GatewayClient]


async def addresses_of(name: str, port: int) -> list[str]:
    """What a name stands for. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


def connect_to(session: aiohttp.ClientSession, port: int) -> Connect:
    """Clients for gateways that listen on this port."""
    return lambda address: GatewayClient(session, url_of(address, port))


class DemandPoller:
    """`resolve` and `connect` are the network's, `sleep` the loop's, `clock` the time of day."""

    def __init__(
        self,
        book: GatewayBook,
        gateways: Gateways,
        connect: Connect,
        *,
        clock: Callable[[], float],
        resolve: Resolve = addresses_of,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._book = book
        self._gateways = gateways
        self._connect = connect
        self._clock = clock
        self._resolve = resolve
        self._sleep = sleep
        self._polling = Polling((GatewayError, BadDemandError), LONGEST_DELAY, sleep)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look and ask for ever."""
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
        """Find out which gateways there are, and ask each of them from now on."""
        name, port = self._gateways.name, self._gateways.port
        try:
            found = await self._resolve(name, port)
        except OSError as error:
            self._book.lose(f"the gateways' name {name} cannot be resolved: {error.strerror or error}")
            self._book.forget(self._clock())
            return
        self._book.keep(found, self._clock())
        for address in self._tasks.keys() - set(found):
            self._tasks.pop(address).cancel()
        for address in found:
            if (task := self._tasks.get(address)) is None or task.done():
                self._tasks[address] = asyncio.create_task(self._ask(address, self._connect(address)))

    async def _ask(self, address: str, client: GatewayClient) -> None:
        await self._polling.run(
            f"the gateway at {address}",
            client.demand,
            lambda answer: self._book.take(address, answer, self._clock()),
            lambda error: self._book.fail(address, str(error)),
        )
