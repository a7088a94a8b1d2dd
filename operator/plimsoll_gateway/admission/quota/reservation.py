"""The quota usage of one request of a key, from its arrival to its end.

Refused requests use nothing, nor does a request whose client disconnects while it is queued. Tokens are reserved by an
estimate from the body, and corrected by the usage that the response reports.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol, Self

from plimsoll_gateway.admission.quota.share import QuotaShare
from plimsoll_gateway.admission.quota.sliding_window import Window
from plimsoll_gateway.admission.quota.usage import Kind, Usage
from plimsoll_gateway.errors.refusals import Refusal, rate_limited, request_beyond_limit, too_many_streams
from plimsoll_gateway.keys.api_key import ApiKey

RawHeader = tuple[bytes, bytes]

_OF_REQUESTS, _OF_TOKENS = (
    [b"x-ratelimit-%s-%s" % (what, of) for what in (b"limit", b"remaining", b"reset")]
    for of in (b"requests", b"tokens")
)


class ShareSource(Protocol):
    """Provides the shares of a key's limits that this gateway may use."""

    def quota_share(self, key: ApiKey, usage: Usage, now: float) -> QuotaShare | None:
        """Return the shares of the key's limits; None if this gateway may use the whole limits."""


class Quotas:
    """The usage of all keys by name: a key whose text or limits are replaced keeps its usage."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, share_source: ShareSource | None = None) -> None:
        """`share_source`: set if several gateways share the limits of keys."""
        self._clock = clock
        self._share_source = share_source
        self._usages: dict[str, Usage] = {}

    def admit(self, key: ApiKey) -> Reservation:
        """Count a new request of the key and return its reservation, to be used with `with`.

        Raises Refusal 429 if the key has no request or stream left.
        """
        usage, now = self.usage(key.name), self._clock()
        quota_share = None if self._share_source is None else self._share_source.quota_share(key, usage, now)
        return Reservation(key, usage, self._clock, now, quota_share)

    def usage(self, name: str) -> Usage:
        """Return the usage of the key with this name."""
        usage = self._usages.get(name)
        if usage is None:
            usage = self._usages[name] = Usage()
        return usage

    def used(self, now: float) -> list[str]:
        """Return the names of keys with usage in the last minute or an open stream."""
        return [name for name, usage in self._usages.items() if not usage.idle(now)]

    def check_integrity(self) -> None:
        """Raise AssertionError if a count is impossible."""
        for usage in self._usages.values():
            usage.check_integrity()


class Reservation:
    """One request and the tokens reserved for it. At the end of its `with` block the actual usage replaces them."""

    def __init__(
        self, key: ApiKey, usage: Usage, clock: Callable[[], float], now: float, quota_share: QuotaShare | None
    ) -> None:
        self.key = key
        self._usage = usage
        self._clock = clock
        self._quota_share = quota_share
        self._reserved = 0
        self._used: int | None = None
        self._begun = False
        limits = key.limits
        streams = limits.streams if quota_share is None else quota_share.share(Kind.STREAMS, now)
        if streams is not None and usage.streams >= streams:
            if quota_share is not None:
                quota_share.refused(Kind.STREAMS, 1, now)
            assert limits.streams is not None
            raise self._told(too_many_streams(key.name, limits.streams))
        self._take(Kind.REQUESTS, 1, limits.requests_per_minute, usage.requests, now)
        self._asked_in = self._reserved_in = usage.requests.take(1, now)
        usage.streams += 1

    def reserve(self, tokens: int) -> None:
        """Add the request's estimated tokens to the usage. Raises Refusal 429 if the limit or our share is exceeded."""
        most, now = self.key.limits.tokens_per_minute, self._clock()
        if self._quota_share is not None and Kind.TOKENS not in self._quota_share.parts:
            most = None  # the limit was removed from the key's file after the request was admitted
        if most is not None and tokens > most:
            raise self._told(request_beyond_limit(self.key.name, tokens, most))
        self._take(Kind.TOKENS, tokens, most, self._usage.tokens, now)
        self._reserved = tokens
        self._reserved_in = self._usage.tokens.take(tokens, now)

    def _take(self, kind: Kind, amount: int, most: int | None, window: Window, now: float) -> None:
        """Raise Refusal 429 if the usage plus `amount` exceeds the limit or this gateway's share of it. The caller adds
        the amount to the usage.
        """
        if most is None:
            return
        quota_share, share = self._quota_share, most
        if quota_share is not None:
            quota_share.note(kind, amount, now)
            share = quota_share.share(kind, now) or 0
        wait = window.seconds_until(amount, share, now)
        if wait > 0:
            if quota_share is not None:
                wait = quota_share.refused(kind, amount, now)
            raise self._told(rate_limited(self.key.name, kind.name.lower(), most, wait))

    def begin(self) -> None:
        """Record that the request was sent to a replica. Without this, the end of `with` uncounts the request."""
        self._begun = True

    def used(self, tokens: int) -> None:
        """Set the tokens that the request has used. Without this it is charged none."""
        self._used = tokens

    def headers(self) -> list[RawHeader]:
        """Return OpenAI's rate-limit headers for the limits of the key."""
        limits, quota_share, now = self.key.limits, self._quota_share, self._clock()
        found: list[RawHeader] = []
        for kind, (limit, remaining, reset), most, window in (
            (Kind.REQUESTS, _OF_REQUESTS, limits.requests_per_minute, self._usage.requests),
            (Kind.TOKENS, _OF_TOKENS, limits.tokens_per_minute, self._usage.tokens),
        ):
            if most is not None:
                seconds = math.ceil(window.seconds_until_empty(now))
                left = most - window.total - (0 if quota_share is None else quota_share.elsewhere(kind))
                found.append((limit, b"%d" % most))
                found.append((remaining, b"%d" % left if left > 0 else b"0"))
                found.append((reset, b"%ds" % seconds))
        return found

    def _told(self, refusal: Refusal) -> Refusal:
        refusal.headers += tuple((name.decode(), value.decode()) for name, value in self.headers())
        return refusal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        usage, now = self._usage, self._clock()
        usage.streams -= 1
        if not self._begun:
            usage.requests.correct(self._asked_in, -1, now)
        usage.tokens.correct(self._reserved_in, (self._used or 0) - self._reserved, now)
