"""Quota sync of this gateway as one object (quotas, node, exchange, secret), and its metrics."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from plimsoll_gateway.admission.quota.reservation import Quotas
from plimsoll_gateway.admission.quota.share import QuotaShare
from plimsoll_gateway.admission.quota.usage import Usage
from plimsoll_gateway.admission.quota_sync.exchange import Exchange
from plimsoll_gateway.admission.quota_sync.listener import Listener
from plimsoll_gateway.admission.quota_sync.node import JOIN_SECONDS, Node
from plimsoll_gateway.admission.quota_sync.peer_addresses import PeerAddress
from plimsoll_gateway.keys.api_key import ApiKey
from plimsoll_gateway.keys.credential import Credential
from plimsoll_gateway.keys.key_folder import NO_KEYS, Keys
from plimsoll_gateway.keys.keyring import KeySource


class ShareCollector(Collector):
    """Collects the shares that a gateway holds, the age of their last grant, and the responding gateways."""

    def __init__(self, node: Node, listener: Listener, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._listener = listener
        self._clock = clock

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield all series."""
        now = self._clock()
        share = GaugeMetricFamily(
            "plimsoll_gateway_key_share",
            "The part of an API key's limit that this gateway may use, for keys in use.",
            labels=["key", "limit"],
        )
        age = GaugeMetricFamily(
            "plimsoll_gateway_lease_age_seconds",
            "Seconds since the owner of an API key's limits last granted this gateway its shares.",
            labels=["key"],
        )
        for name, quota_share in self._node.quota_shares():
            for kind in quota_share.parts:
                share.add_metric([name, kind.name.lower()], quota_share.share(kind, now) or 0)
            if quota_share.parts:
                age.add_metric([name], now - min(part.confirmed for part in quota_share.parts.values()))
        yield share
        yield age
        membership = self._node.membership
        yield GaugeMetricFamily(
            "plimsoll_gateway_peers", "Other gateways that share the limits of keys.", value=len(membership.members) - 1
        )
        yield GaugeMetricFamily(
            "plimsoll_gateway_answering_peers", "Other gateways that respond.", value=len(membership.answering) - 1
        )
        yield CounterMetricFamily(
            "plimsoll_gateway_refused_peers",
            "Connections to the gateways' port that were closed because of their content.",
            value=self._listener.refused,
        )


class QuotaSync:
    """Shares the limits of keys with other gateways. `quotas` admits the requests of this gateway."""

    def __init__(
        self,
        own: PeerAddress,
        addresses: tuple[PeerAddress, ...],
        secret: Credential,
        source: KeySource,
        sock: socket.socket,
    ) -> None:
        """`sock` listens at `own`, which other gateways find through `addresses`; `source` has the keys."""
        self._source = source
        self._seen: Keys = NO_KEYS
        self._by_name: Mapping[str, ApiKey] = {}
        self._secret = secret
        self._sock = sock
        self.quotas = Quotas(time.monotonic, self)
        instance = uuid.uuid4().hex
        self._node = Node(str(own), instance, self.quotas, self._keys, time.monotonic())
        self._exchange = Exchange(self._node, instance, addresses, self._secrets)
        self.collector = ShareCollector(self._node, self._exchange.listener)

    def quota_share(self, key: ApiKey, usage: Usage, now: float) -> QuotaShare | None:
        """Return our shares of a key's limits; None if this gateway may use all of them."""
        return self._node.quota_share(key, usage, now)

    async def run(self) -> None:
        """Exchange reports with other gateways until cancelled, and reload the secret when it changes."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._secret.follow())
            group.create_task(self._exchange.run(self._sock))

    async def join(self) -> None:
        """Wait until our shares are known, or for at most 2 x JOIN_SECONDS."""
        try:
            async with asyncio.timeout(2 * JOIN_SECONDS):
                await self._exchange.joined.wait()
        except TimeoutError:
            return  # names could not be resolved; a gateway that finds no other counts alone

    def _keys(self) -> Mapping[str, ApiKey]:
        current = self._source.current
        if current is not self._seen:
            self._seen, self._by_name = current, current.by_name()
        return self._by_name

    def _secrets(self) -> list[bytes]:
        return [one.encode() for one in self._secret.all]
