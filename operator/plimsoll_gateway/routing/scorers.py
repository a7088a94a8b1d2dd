"""What speaks for a replica: a scorer each, and their sum decides among those that have room.

A scorer sees one request and one replica and says between 0 and 1 how well they fit. Another one (which replica has a
request's adapter, say) is one more class here and one more entry in the list of the picker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from plimsoll_gateway.discovery.routing_table import Replica
from plimsoll_gateway.routing.prefix import ranks, seed
from plimsoll_gateway.routing.prefix_index import PrefixIndex


class RoutingHints(msgspec.Struct, frozen=True):
    """What a request would like to find: `blocks` are the names of its prefix, the first one first."""

    blocks: tuple[int, ...] = ()


ANYTHING = RoutingHints()


class Scorer(Protocol):
    """One reason to prefer a replica."""

    def scores(self, hints: RoutingHints, replicas: Sequence[Replica]) -> Sequence[float]:
        """For each replica, from 0 (nothing speaks for it) to 1."""

    def sent(self, hints: RoutingHints, replica: Replica) -> None:
        """The replica gets the request."""


class PrefixScorer:
    """How much of the prefix a replica has computed; where that is the same, consistent hashing of the first block.

    All gateways hash alike, so that they send a prefix to one place without a word between them; what each remembers
    is only where deeper blocks went when that place had no room.
    """

    def __init__(self, memory: PrefixIndex) -> None:
        self._memory = memory
        self._seeds: dict[str, int] = {}

    def scores(self, hints: RoutingHints, replicas: Sequence[Replica]) -> Sequence[float]:
        """A share for each block that it has had, and less than one block's for the hash."""
        blocks = hints.blocks
        if not blocks:
            return [0.0] * len(replicas)
        depths = self._memory.depths(blocks)
        unit, known = 1.0 / (len(blocks) + 1), self._seeds
        seeds = [known.get(replica.id) or self._new_seed(replica.id) for replica in replicas]
        orders = zip(replicas, ranks(blocks[0], seeds), strict=True)
        return [unit * (depths.get(replica.id, 0) + order / 2**64) for replica, order in orders]

    def sent(self, hints: RoutingHints, replica: Replica) -> None:
        """Remember where the blocks are now."""
        self._memory.sent(hints.blocks, replica.id)

    def _new_seed(self, replica_id: str) -> int:
        if len(self._seeds) >= 4096:  # replicas come and go; theirs are made again in a microsecond
            self._seeds.clear()
        made = self._seeds[replica_id] = seed(replica_id)
        return made
