"""One gateway among several, as holder of shares and owner of quotas, without sockets or a clock.

Each other gateway gets a report twice a second, and its reply says how much of each key this gateway may use. Requests
are decided by the current shares. No request of a client waits for another gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from plimsoll_gateway.admission.quota.reservation import Quotas
from plimsoll_gateway.admission.quota.share import QuotaShare, limits_of
from plimsoll_gateway.admission.quota.usage import Kind, Usage
from plimsoll_gateway.admission.quota_sync.membership import GONE_SECONDS, Membership
from plimsoll_gateway.admission.quota_sync.messages import MOST_LINES, Line, Reply, Report
from plimsoll_gateway.admission.quota_sync.owner import QuotaOwner
from plimsoll_gateway.admission.quota_sync.split import even
from plimsoll_gateway.keys.api_key import ApiKey

TURN_SECONDS = 0.5
JOIN_ROUNDS = 3
"""A new gateway knows its shares after this many replies of each other one: by then the others have reduced theirs."""
JOIN_SECONDS = 3.0
"""After this time the gateway continues with even shares, even if some gateways have not replied."""


@dataclass(slots=True)
class Held:
    """A key's quota share, and the gateway that has been sent it in a report and has not replied."""

    quota_share: QuotaShare
    asked: str | None = None


class Node:
    """The state of this gateway's shares. Use on the event loop only."""

    def __init__(
        self,
        own: str,
        instance: str,
        usages: Quotas,
        keys: Callable[[], Mapping[str, ApiKey]],
        now: float,
    ) -> None:
        """`own`: our address as other gateways know it. `keys`: returns the valid keys by name."""
        self.membership = Membership(own)
        self.owner = QuotaOwner(self._limit_of, self.membership.order)
        self.joined = False
        self.hurry: Callable[[str], None] = _nothing
        self._instance = instance
        self._usages = usages
        self._keys = keys
        self._began = now
        self._shared = False  # other gateways exist, or their usage may still count
        self._together = now
        self._quota_shares: dict[str, Held] = {}
        self._numbers: dict[str, int] = {}
        self._waiting: set[str] = set()
        self._rounds: dict[str, int] = {}

    @property
    def own(self) -> str:
        """Our own address."""
        return self.membership.own

    def quota_share(self, key: ApiKey, usage: Usage, now: float) -> QuotaShare | None:
        """Return our shares of a key's limits; None if it has no limits, or if no other gateway has existed in the last
        minute.
        """
        if not self._shared:
            return None
        held = self._quota_shares.get(key.name)
        if held is None:
            return self._open(key, usage, now)
        if held.quota_share.limits is not key.limits:
            held.quota_share.renew(key.limits, self._first(key.name), now)
        return held.quota_share

    def _open(self, key: ApiKey, usage: Usage, now: float) -> QuotaShare | None:
        if not any(limits_of(key.limits).values()):
            return None
        owner_of, name = self.membership.owner, key.name
        quota_share = QuotaShare(key.limits, usage, self._first(name), lambda: self.hurry(owner_of(name)), now)
        if len(self._quota_shares) * len(Kind) < MOST_LINES:  # without a record, the share stays even
            self._quota_shares[name] = Held(quota_share)
        return quota_share

    def _first(self, name: str) -> Callable[[int], int]:
        at, crowd = self.membership.order(name).index(self.own), self.membership.crowd
        return lambda limit: even(limit, crowd, at) if self.joined else 0

    def _limit_of(self, name: str, kind: Kind) -> int | None:
        key = self._keys().get(name)
        return None if key is None else limits_of(key.limits)[kind]

    def list(self, addresses: Collection[str], now: float) -> None:
        """Set the addresses that DNS lists."""
        self._look(lambda: self.membership.list(addresses, now), now)

    def _look(self, look: Callable[[], None], now: float) -> None:
        """Update the membership with `look`. When the first other gateway appears, keys in use get a share of at least
        their usage.
        """
        look()
        if self.membership.alone:
            return
        self._together = now
        if not self._shared:
            self._shared = True
            for name in self._usages.used(now):
                key = self._keys().get(name)
                if key is not None:
                    self._open(key, self._usages.usage(name), now)

    def turn(self, now: float) -> None:
        """Do the periodic work, every half second: update the membership, and grant this gateway its shares of the
        quotas that it owns itself.
        """
        self._look(lambda: self.membership.look(now), now)
        if self._shared and now - self._together > GONE_SECONDS:
            self._shared = False
            self._quota_shares.clear()
        self.owner.tidy(self.membership.members, now)
        if not self.joined:
            others = self.membership.listed - {self.own}
            known = all(self._rounds.get(other, 0) >= JOIN_ROUNDS for other in others)
            self.joined = known or now - self._began >= JOIN_SECONDS
        self._renew(now)
        self._settle(now)

    def _renew(self, now: float) -> None:
        """Apply changes of keys, and remove shares of deleted, idle keys."""
        keys = self._keys()
        for name, held in list(self._quota_shares.items()):
            key = keys.get(name)
            if key is None and held.quota_share.idle(now):
                del self._quota_shares[name]
            elif key is not None and held.quota_share.limits is not key.limits:
                held.quota_share.renew(key.limits, self._first(name), now)

    def _settle(self, now: float) -> None:
        report = self.report(self.own, now)
        self.owner.hear(report, now)
        self.accept(self.own, self.owner.reply(report, self._instance, now), now)

    def report(self, peer: str, now: float) -> Report:
        """Return the next report to a gateway, about the keys that it owns.

        Call `accept` with its reply, or `failed`.
        """
        number = self._numbers[peer] = self._numbers.get(peer, 0) + 1
        self._waiting.add(peer)
        lines = []
        for name, held in self._quota_shares.items():
            if self.membership.owner(name) != peer or held.asked not in (None, peer):
                continue
            held.asked = peer
            for kind in held.quota_share.parts:
                used, share = held.quota_share.usage.used(kind, now), held.quota_share.share(kind, now) or 0
                lines.append(Line(name, kind, max(share, used), used, held.quota_share.want(kind, now)))
        return Report(self.own, self._instance, number, self.joined, tuple(lines))

    def answer(self, report: Report, now: float) -> Reply:
        """Return the reply to another gateway's report. Raises StaleReport."""
        self._look(lambda: self.membership.spoke(report.sender, now), now)
        self.owner.hear(report, now)
        if any(line.want > line.held for line in report.lines):
            self._settle(now)  # release what we do not need before replying
        return self.owner.reply(report, self._instance, now)

    def accepts(self, peer: str, reply: Reply) -> bool:
        """Return whether a reply of this gateway answers our last report to it, and is the first to do so."""
        return peer in self._waiting and reply.number == self._numbers[peer]

    def accept(self, peer: str, reply: Reply, now: float) -> None:
        """Apply a reply. Replies to earlier reports are ignored."""
        if not self.accepts(peer, reply):
            return
        self._waiting.discard(peer)
        self._rounds[peer] = self._rounds.get(peer, 0) + 1
        asked = self._release(peer)
        self.membership.answered(peer, now)
        given = False
        for grant in reply.grants:
            quota_share = self._granted(peer, grant.key, asked, now)
            if quota_share is not None:
                back = quota_share.grant(grant.kind, grant.share, grant.elsewhere, now)
                given |= back * 50 >= max(
                    1, quota_share.parts[grant.kind].limit if grant.kind in quota_share.parts else 0
                )
        for name in asked.intersection(reply.forget):
            if name in self._quota_shares and self._quota_shares[name].quota_share.idle(now):
                del self._quota_shares[name]
        if given and peer != self.own:
            self.hurry(peer)  # others may wait for the amount given back

    def _granted(self, peer: str, name: str, asked: set[str], now: float) -> QuotaShare | None:
        """Return the quota share of a grant, created if needed; None if the peer may not grant it."""
        held = self._quota_shares.get(name)
        if held is not None:
            return held.quota_share if name in asked else None
        key = self._keys().get(name)
        if key is None or self.membership.owner(name) != peer:
            return None
        asked.add(name)
        return self._open(key, self._usages.usage(name), now)

    def failed(self, peer: str) -> None:
        """Record that a gateway has not replied; a late reply is ignored."""
        self._waiting.discard(peer)
        self._release(peer)

    def _release(self, peer: str) -> set[str]:
        """Mark the keys in the last report to this gateway as not asked about, and return their names."""
        asked = {name for name, held in self._quota_shares.items() if held.asked == peer}
        for name in asked:
            self._quota_shares[name].asked = None
        return asked

    def quota_shares(self) -> Iterator[tuple[str, QuotaShare]]:
        """Yield the names and shares of keys whose quotas are shared with other gateways."""
        for name, held in self._quota_shares.items():
            yield name, held.quota_share

    def check_integrity(self, now: float) -> None:
        """Raise AssertionError if a record is impossible."""
        self.membership.check_integrity()
        self.owner.check_integrity()
        for name, held in self._quota_shares.items():
            held.quota_share.check_integrity(now)
            assert held.asked is None or held.asked in self._waiting, (
                f"{name} waits for {held.asked}, which has no open report"
            )


def _nothing(_: str) -> None:
    pass
