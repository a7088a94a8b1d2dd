"""What /metrics tells of shares, at the time of the scrape. Labels are bounded by the keys that there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from plimsoll_gateway.leases.door import Door
from plimsoll_gateway.leases.node import Node


class LeaseCollector(Collector):
    """The shares that a gateway holds, how long ago their owners last said so, and which gateways answer."""

    def __init__(self, node: Node, door: Door, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._door = door
        self._clock = clock

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """All series."""
        now = self._clock()
        share = GaugeMetricFamily(
            "plimsoll_gateway_key_share",
            "How much of an API key's limit may be used at this gateway, of keys that were asked for lately.",
            labels=["key", "limit"],
        )
        age = GaugeMetricFamily(
            "plimsoll_gateway_lease_age_seconds",
            "How long ago the owner of an API key's limits last said what this gateway's shares of them are.",
            labels=["key"],
        )
        for name, lease in self._node.leases():
            for kind in lease.parts:
                share.add_metric([name, kind.name.lower()], lease.share(kind, now) or 0)
            if lease.parts:
                age.add_metric([name], now - min(part.confirmed for part in lease.parts.values()))
        yield share
        yield age
        roster = self._node.roster
        yield GaugeMetricFamily(
            "plimsoll_gateway_peers", "Other gateways that share the limits of keys.", value=len(roster.members) - 1
        )
        yield GaugeMetricFamily(
            "plimsoll_gateway_answering_peers", "Those of them that answer.", value=len(roster.answering) - 1
        )
        yield CounterMetricFamily(
            "plimsoll_gateway_refused_peers",
            "Connections to the gateways' own port that were ended for what they said.",
            value=self._door.refused,
        )
