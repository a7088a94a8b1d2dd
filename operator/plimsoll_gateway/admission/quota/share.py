"""The shares of a key's quotas that one of several gateways holds, and the demand that it reports.

A share bounds the usage of the last minute, like the limit of a single gateway. As long as the shares of all gateways
sum to at most the limit, and no share is below its holder's usage, no minute exceeds the limit.
"""

from __future__ import annotations

from collections.abc import Callable

from plimsoll_gateway.admission.quota.sliding_window import SECONDS, Window
from plimsoll_gateway.admission.quota.usage import Kind, Usage
from plimsoll_gateway.keys.api_key import KeyLimits

DEMAND_SECONDS = 2
"""A gateway requests a share of its usage plus its demand of this many seconds; the owner's grant arrives in less time.
"""
SOON = 1.0
"""Seconds after which a refused request may succeed: by then the owner has granted what other gateways do not need."""


class Part:
    """One quota: the key's `limit`, our `share`, other gateways' usage (`elsewhere`), and recent demand (`asked`).

    `due`: the share granted by the owner. `share` is above it only as long as the usage of the last minute is.
    `confirmed`: when the owner last granted a share; before that, when the part was created.
    """

    __slots__ = ("asked", "confirmed", "due", "elsewhere", "limit", "share")

    def __init__(self, limit: int, due: int, used: int, now: float) -> None:
        self.limit = limit
        self.due = due
        self.share = max(due, used)
        self.elsewhere = 0
        self.asked = Window(DEMAND_SECONDS)
        self.confirmed = now


class QuotaShare:
    """This gateway's share of each of a key's limits. A quota without a limit has no share."""

    def __init__(
        self,
        limits: KeyLimits,
        usage: Usage,
        first: Callable[[int], int],
        hungry: Callable[[], None],
        now: float,
    ) -> None:
        """`first`: returns the share of a limit that a gateway holds before the owner has granted one.

        `hungry` is called when a request is refused because it does not fit into our share.
        """
        self.usage = usage
        self.parts: dict[Kind, Part] = {}
        self._hungry = hungry
        self.renew(limits, first, now)

    def renew(self, limits: KeyLimits, first: Callable[[int], int], now: float) -> None:
        """Apply changed limits of the key. The share of a new limit is `first(limit)`, or the usage if that is higher;
        a share above a lowered limit falls to it.
        """
        self.limits = limits
        for kind, limit in limits_of(limits).items():
            part = self.parts.get(kind)
            if limit is None:
                self.parts.pop(kind, None)
            elif part is None:
                self.parts[kind] = Part(limit, first(limit), self.usage.used(kind, now), now)
            else:
                part.limit, part.due, part.share = limit, min(limit, part.due), min(limit, part.share)

    def share(self, kind: Kind, now: float) -> int | None:
        """Return the amount this gateway may use; None without a limit. What the owner has reclaimed is given up as the
        usage falls.
        """
        part = self.parts.get(kind)
        if part is None:
            return None
        part.share = min(part.share, max(part.due, self.usage.used(kind, now)))
        return part.share

    def elsewhere(self, kind: Kind) -> int:
        """Return the usage of other gateways as the owner last reported it."""
        part = self.parts.get(kind)
        return 0 if part is None else part.elsewhere

    def note(self, kind: Kind, amount: int, now: float) -> None:
        """Record a demand of `amount`."""
        part = self.parts.get(kind)
        if part is not None:
            part.asked.take(amount, now)

    def refused(self, kind: Kind, amount: int, now: float) -> float:
        """Record that a request does not fit into our share, and call `hungry`. Returns the seconds after which
        the client should try again.
        """
        self._hungry()
        part = self.parts[kind]
        if kind is Kind.STREAMS:
            part.asked.take(amount, now)
            return SOON
        window = self.usage.requests if kind is Kind.REQUESTS else self.usage.tokens
        return min(float(SECONDS), max(SOON, window.seconds_until(amount, part.limit - part.elsewhere, now)))

    def want(self, kind: Kind, now: float) -> int:
        """Return the share to request: the usage plus recent demand, at most the limit, but at least the usage."""
        part = self.parts[kind]
        part.asked.forget(now)
        used = self.usage.used(kind, now)
        return max(used, min(part.limit, used + part.asked.total))

    def grant(self, kind: Kind, share: int, elsewhere: int, now: float) -> int:
        """Apply a grant of the owner. The share stays at least the usage. Returns the amount given back; negative if
        the share grew.
        """
        part = self.parts.get(kind)
        if part is None:
            return 0
        before = part.share
        part.due = min(share, part.limit)
        part.share = max(part.due, self.usage.used(kind, now))
        part.elsewhere, part.confirmed = elsewhere, now
        return before - part.share

    def idle(self, now: float) -> bool:
        """Return whether no quota of the key has usage or recent demand at this gateway."""
        return not any(self.want(kind, now) for kind in self.parts)

    def check_integrity(self, now: float) -> None:
        """Raise AssertionError if a share is impossible."""
        for kind, part in self.parts.items():
            part.asked.check_integrity()
            assert 0 <= part.share <= max(part.limit, self.usage.used(kind, now)), (
                f"a share of {part.share} of {part.limit} {kind.name}"
            )
            assert part.elsewhere >= 0, f"others used {part.elsewhere}"


def limits_of(limits: KeyLimits) -> dict[Kind, int | None]:
    """Return the limit of each kind of quota; None for no limit."""
    return {
        Kind.REQUESTS: limits.requests_per_minute,
        Kind.TOKENS: limits.tokens_per_minute,
        Kind.STREAMS: limits.streams,
    }
