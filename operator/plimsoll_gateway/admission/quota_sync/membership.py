"""The known gateways, those that respond, and the owner of each key's quota.

Rendezvous hashing over the responding gateways selects the owner: gateways with the same view select the same owner,
and a gateway that comes or goes moves its own keys only.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b

from plimsoll_gateway.admission.quota.sliding_window import SECONDS
from plimsoll_gateway.routing.prefix import rank, seed

GONE_SECONDS = SECONDS + 2.0
"""The usage of a gateway that left so long ago has left the last minute, wherever within a second the window
started.
"""
SILENT_SECONDS = 3.0
"""A gateway that has not responded for this time is not an owner."""


class Membership:
    """The gateways as one of them sees them, itself included."""

    def __init__(self, own: str) -> None:
        self.own = own
        self._listed: frozenset[str] = frozenset([own])
        self._spoke: dict[str, float] = {}
        self._answered: dict[str, float] = {}
        self.members: tuple[str, ...] = (own,)
        self.answering: frozenset[str] = frozenset([own])
        self._orders: dict[str, tuple[str, ...]] = {}
        self._gone: dict[str, float] = {}

    def list(self, addresses: Collection[str], now: float) -> None:
        """Set the addresses that DNS lists."""
        self._listed = frozenset(addresses) | {self.own}
        self.look(now)

    @property
    def listed(self) -> frozenset[str]:
        """The addresses that DNS lists, and our own."""
        return self._listed

    def spoke(self, address: str, now: float) -> None:
        """Record a report of a gateway: it exists, whether listed or not."""
        self._spoke[address] = now
        if address not in self.members:
            self.look(now)

    def answered(self, address: str, now: float) -> None:
        """Record a reply of a gateway: it can be an owner."""
        self._answered[address] = now
        if address not in self.answering:
            self.look(now)

    def look(self, now: float) -> None:
        """Recompute the members (listed by DNS, or with a report in the last SILENT_SECONDS) and the responding ones
        (with a reply in the last SILENT_SECONDS).
        """
        self._spoke = _recent(self._spoke, now)
        self._answered = _recent(self._answered, now)
        members = tuple(sorted(self._listed | self._spoke.keys()))
        answering = frozenset(self._answered.keys() & set(members)) | {self.own}
        self._gone.update(dict.fromkeys(set(self.members) - set(members), now))
        self._gone = {gone: at for gone, at in self._gone.items() if now - at <= GONE_SECONDS and gone not in members}
        if (members, answering) != (self.members, self.answering):
            self.members, self.answering = members, answering
            self._orders.clear()

    @property
    def alone(self) -> bool:
        """Whether no other gateway exists."""
        return len(self.members) == 1

    def order(self, key: str) -> tuple[str, ...]:
        """Return all members, ranked for a key; the first responding one is its owner."""
        found = self._orders.get(key)
        if found is None:
            number = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little")
            ranked = sorted(self.members, key=lambda member: rank(number, seed(member)), reverse=True)
            found = self._orders[key] = tuple(ranked)
        return found

    @property
    def crowd(self) -> int:
        """Number of members now and within the last minute; the usage of those that left still counts."""
        return len(self.members) + len(self._gone)

    def owner(self, key: str) -> str:
        """Return the owner of a key: the first responding member of its order."""
        return next(member for member in self.order(key) if member in self.answering)

    def check_integrity(self) -> None:
        """Raise AssertionError if the lists contradict each other."""
        assert self.own in self.answering, "the gateway does not respond to itself"
        assert self.answering <= set(self.members), "a gateway responds that is not a member"


def _recent(times: dict[str, float], now: float) -> dict[str, float]:
    return {address: at for address, at in times.items() if now - at <= SILENT_SECONDS}
