"""Scorers rate replicas for a request; the sum of their scores decides among the replicas below the load bound.

A score is a number from 0 to 1 for one request and one replica. A further scorer (say, for a request's adapter) is one
more class here and one more entry in the picker's list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from plimsoll_gateway.discovery.routing_table import Replica
from plimsoll_gateway.routing.prefix import ranks, seed
from plimsoll_gateway.routing.prefix_index import PrefixIndex


class RoutingHints(msgspec.Struct, frozen=True):
    """Preferences of a request. `blocks`: hashes of its prefix, in order."""

    blocks: tuple[int, ...] = ()


ANYTHING = RoutingHints()


class Scorer(Protocol):
    """Rates replicas by one criterion."""

    def scores(self, hints: RoutingHints, replicas: Sequence[Replica]) -> Sequence[float]:
        """Return a score for each replica, from 0 (no preference) to 1."""

    def sent(self, hints: RoutingHints, replica: Replica) -> None:
        """Record that the replica gets the request."""


class PrefixScorer:
    """Scores by the part of the prefix that a replica has computed; ties are broken by consistent hashing of the first
    block.

    All gateways use the same hash, and therefore send a prefix to the same replica without communication. Each also
    records which replicas got its blocks, in case the one that the hash selects was above the load bound.
    """

    def __init__(self, memory: PrefixIndex) -> None:
        self._memory = memory

    def scores(self, hints: RoutingHints, replicas: Sequence[Replica]) -> Sequence[float]:
        """Return (depth + hash) / (number of blocks + 1) for each replica; 0 without blocks.

        `depth`: number of blocks up to the last one that the replica got; `hash`: from 0 to 1, of replica and first
        block.
        """
        blocks = hints.blocks
        if not blocks:
            return [0.0] * len(replicas)
        depths = self._memory.depths(blocks)
        unit = 1.0 / (len(blocks) + 1)
        seeds = [seed(replica.id) for replica in replicas]
        orders = zip(replicas, ranks(blocks[0], seeds), strict=True)
        return [unit * (depths.get(replica.id, 0) + order / 2**64) for replica, order in orders]

    def sent(self, hints: RoutingHints, replica: Replica) -> None:
        """Record the replica of the request's blocks."""
        self._memory.sent(hints.blocks, replica.id)
