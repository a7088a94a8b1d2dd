"""Everything that a gateway needs to share the limits of keys with others, put together."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Mapping

from plimsoll_gateway.credential import Credential
from plimsoll_gateway.keys.folder import NO_KEYS, Keys
from plimsoll_gateway.keys.keyring import KeySource
from plimsoll_gateway.keys.record import ApiKey
from plimsoll_gateway.leases.exchange import Exchange
from plimsoll_gateway.leases.names import Place
from plimsoll_gateway.leases.node import JOIN_SECONDS, Node
from plimsoll_gateway.leases.series import LeaseCollector
from plimsoll_gateway.quota.account import Account
from plimsoll_gateway.quota.admission import Quotas
from plimsoll_gateway.quota.lease import Lease


class Sharing:
    """The accounts of keys of which other gateways have some, too. `quotas` are for the requests that come here."""

    def __init__(
        self, own: Place, places: tuple[Place, ...], secret: Credential, source: KeySource, sock: socket.socket
    ) -> None:
        """`sock` listens at `own`, which the others find by `places`; `source` has the keys."""
        self._source = source
        self._seen: Keys = NO_KEYS
        self._by_name: Mapping[str, ApiKey] = {}
        self._secret = secret
        self._sock = sock
        self.quotas = Quotas(time.monotonic, self)
        instance = uuid.uuid4().hex
        self._node = Node(str(own), instance, self.quotas, self._keys, time.monotonic())
        self._exchange = Exchange(self._node, instance, places, self._secrets)
        self.collector = LeaseCollector(self._node, self._exchange.door)

    def lease(self, key: ApiKey, account: Account, now: float) -> Lease | None:
        """Our shares of a key's limits; None where all is ours."""
        return self._node.lease(key, account, now)

    async def run(self) -> None:
        """Exchange reports with the others for ever, and read the secret again when it changes."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._secret.follow())
            group.create_task(self._exchange.run(self._sock))

    async def join(self) -> None:
        """Wait until our shares are known, or for a while."""
        try:
            async with asyncio.timeout(2 * JOIN_SECONDS):
                await self._exchange.joined.wait()
        except TimeoutError:
            return  # names could not be looked up for so long; a gateway that finds nobody counts by itself

    def _keys(self) -> Mapping[str, ApiKey]:
        current = self._source.current
        if current is not self._seen:
            self._seen, self._by_name = current, current.by_name()
        return self._by_name

    def _secrets(self) -> list[bytes]:
        return [one.encode() for one in self._secret.all]
