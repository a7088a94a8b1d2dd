"""The shares of a key's quotas that one gateway of several holds, and what shows how much it needs of them.

A share bounds what is used in the last minute, just as the limit of a gateway that is alone. So long as the shares of
all gateways are together no more than the limit, and none is below what its holder has used, no minute has more than
the limit over all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from plimsoll_gateway.admission.quota.sliding_window import SECONDS, Window
from plimsoll_gateway.admission.quota.usage import Kind, Usage
from plimsoll_gateway.keys.api_key import KeyLimits

DEMAND_SECONDS = 2
"""A gateway would like what it has used and what was asked of it in so many seconds: a share grows in less."""
SOON = 1.0
"""Seconds after which a gateway has its part of what others do not need."""


class Part:
    """One quota: the key's `limit`, our `share`, what others used of it, and what was asked of us lately.

    `due`: what our share comes down to as what we have used leaves the last minute; it is never above that otherwise.
    `confirmed`: when the owner last said so; the time of our own first guess until then.
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
    """One key's shares. Where the key has no limit, there is no share of it."""

    def __init__(
        self,
        limits: KeyLimits,
        usage: Usage,
        first: Callable[[int], int],
        hungry: Callable[[], None],
        now: float,
    ) -> None:
        """`first`: the share of a limit that one holds of whom the owner has heard nothing. `hungry` is called when a
        request is refused that the limit might have allowed.
        """
        self.usage = usage
        self.parts: dict[Kind, Part] = {}
        self._hungry = hungry
        self.renew(limits, first, now)

    def renew(self, limits: KeyLimits, first: Callable[[int], int], now: float) -> None:
        """The key's limits may be others now. A share is never above its limit, nor below what was used of it."""
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
        """How much may be used here; None without a limit. What is called back is not used again once it is free."""
        part = self.parts.get(kind)
        if part is None:
            return None
        part.share = min(part.share, max(part.due, self.usage.used(kind, now)))
        return part.share

    def elsewhere(self, kind: Kind) -> int:
        """What other gateways have used, when the owner last spoke."""
        part = self.parts.get(kind)
        return 0 if part is None else part.elsewhere

    def note(self, kind: Kind, amount: int, now: float) -> None:
        """So much is asked for."""
        part = self.parts.get(kind)
        if part is not None:
            part.asked.take(amount, now)

    def refused(self, kind: Kind, amount: int, now: float) -> float:
        """A request has no room in our share: the owner is to hear of it at once. Returns the seconds to wait."""
        self._hungry()
        part = self.parts[kind]
        if kind is Kind.STREAMS:
            part.asked.take(amount, now)
            return SOON
        window = self.usage.requests if kind is Kind.REQUESTS else self.usage.tokens
        return min(float(SECONDS), max(SOON, window.seconds_until(amount, part.limit - part.elsewhere, now)))

    def want(self, kind: Kind, now: float) -> int:
        """What we would like to hold; nothing but what is used where nothing was asked lately."""
        part = self.parts[kind]
        part.asked.forget(now)
        used = self.usage.used(kind, now)
        return max(used, min(part.limit, used + part.asked.total))

    def grant(self, kind: Kind, share: int, elsewhere: int, now: float) -> int:
        """The owner has spoken. Returns how much of our share is given back: what is used cannot be, as yet."""
        part = self.parts.get(kind)
        if part is None:
            return 0
        before = part.share
        part.due = min(share, part.limit)
        part.share = max(part.due, self.usage.used(kind, now))
        part.elsewhere, part.confirmed = elsewhere, now
        return before - part.share

    def idle(self, now: float) -> bool:
        """Whether nothing is used or wanted."""
        return not any(self.want(kind, now) for kind in self.parts)

    def check_integrity(self, now: float) -> None:
        """Raise AssertionError where a share is impossible."""
        for kind, part in self.parts.items():
            part.asked.check_integrity()
            assert 0 <= part.share <= max(part.limit, self.usage.used(kind, now)), (
                f"a share of {part.share} of {part.limit} {kind.name}"
            )
            assert part.elsewhere >= 0, f"others used {part.elsewhere}"


def limits_of(limits: KeyLimits) -> dict[Kind, int | None]:
    """A key's limits by kind."""
    return {
        Kind.REQUESTS: limits.requests_per_minute,
        Kind.TOKENS: limits.tokens_per_minute,
        Kind.STREAMS: limits.streams,
    }
