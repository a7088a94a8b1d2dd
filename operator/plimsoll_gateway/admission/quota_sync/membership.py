"""Which gateways there are, which of them answer, and which of those owns a key's quota.

The owner is found by rendezvous hashing over those that answer: all who see the same gateways find the same one, and
one that comes or goes moves its own keys only.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b

from plimsoll_gateway.admission.quota.sliding_window import SECONDS
from plimsoll_gateway.routing.prefix import rank, seed

GONE_SECONDS = SECONDS + 2.0
"""What somebody used who went so long ago no longer counts, whenever within a second its window began."""
SILENT_SECONDS = 3.0
"""One that has not answered for so long is passed over."""


class Membership:
    """The gateways as one of them sees them; itself is always among them."""

    def __init__(self, own: str) -> None:
        self.own = own
        self._listed: frozenset[str] = frozenset([own])
        self._spoke: dict[str, float] = {}
        self._answered: dict[str, float] = {}
        self.members: tuple[str, ...] = (own,)
        self.answering: frozenset[str] = frozenset([own])
        self._seeds: dict[str, int] = {own: seed(own)}
        self._orders: dict[str, tuple[str, ...]] = {}
        self._gone: dict[str, float] = {}

    def list(self, addresses: Collection[str], now: float) -> None:
        """These are there, as far as names tell."""
        self._listed = frozenset(addresses) | {self.own}
        self.look(now)

    @property
    def listed(self) -> frozenset[str]:
        """Those that names tell of."""
        return self._listed

    def spoke(self, address: str, now: float) -> None:
        """One has reported to us: it is there, whether it is listed yet or not."""
        self._spoke[address] = now
        if address not in self.members:
            self.look(now)

    def answered(self, address: str, now: float) -> None:
        """One has replied to us: it can be an owner."""
        self._answered[address] = now
        if address not in self.answering:
            self.look(now)

    def look(self, now: float) -> None:
        """Take account of the time."""
        self._spoke = _recent(self._spoke, now)
        self._answered = _recent(self._answered, now)
        members = tuple(sorted(self._listed | self._spoke.keys()))
        answering = frozenset(self._answered.keys() & set(members)) | {self.own}
        self._gone.update(dict.fromkeys(set(self.members) - set(members), now))
        self._gone = {gone: at for gone, at in self._gone.items() if now - at <= GONE_SECONDS and gone not in members}
        if (members, answering) != (self.members, self.answering):
            self.members, self.answering = members, answering
            self._seeds = {member: seed(member) for member in members}
            self._orders.clear()

    @property
    def alone(self) -> bool:
        """Whether nobody else is there."""
        return len(self.members) == 1

    def order(self, key: str) -> tuple[str, ...]:
        """All that are there, those first to whom a key belongs most."""
        found = self._orders.get(key)
        if found is None:
            number = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little")
            ranked = sorted(self._seeds, key=lambda member: rank(number, self._seeds[member]), reverse=True)
            found = self._orders[key] = tuple(ranked)
        return found

    @property
    def crowd(self) -> int:
        """How many there are, and were a minute ago: what those used who are gone still counts."""
        return len(self.members) + len(self._gone)

    def owner(self, key: str) -> str:
        """The first of those that answer."""
        return next(member for member in self.order(key) if member in self.answering)

    def check_integrity(self) -> None:
        """Raise AssertionError where the lists contradict each other."""
        assert self.own in self.answering, "it does not answer itself"
        assert self.answering <= set(self.members), "one answers that is not there"
        assert self._seeds.keys() == set(self.members), "ranks are of others than those that are there"


def _recent(times: dict[str, float], now: float) -> dict[str, float]:
    return {address: at for address, at in times.items() if now - at <= SILENT_SECONDS}
