"""A key's request from its arrival to its end, and what it counts for.

Refused requests count for nothing, nor does one whose client hangs up while it waits for its turn. Tokens are reserved
as the body lets expect, and corrected once the answer tells what they were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from plimsoll_gateway.admission.quota.share import Lease
from plimsoll_gateway.admission.quota.sliding_window import Window
from plimsoll_gateway.admission.quota.usage import Account, Kind
from plimsoll_gateway.errors.refusals import Refusal, rate_limited, request_beyond_limit, too_many_streams
from plimsoll_gateway.keys.api_key import ApiKey

RawHeader = tuple[bytes, bytes]

_OF_REQUESTS, _OF_TOKENS = (
    [b"x-ratelimit-%s-%s" % (what, of) for what in (b"limit", b"remaining", b"reset")]
    for of in (b"requests", b"tokens")
)


class Lessor(Protocol):
    """Who knows how much of a key's limits may be used here."""

    def lease(self, key: ApiKey, account: Account, now: float) -> Lease | None:
        """Our shares of them; None where all that the key has is ours to give."""


class Quotas:
    """The accounts of all keys, by name: a key that is renewed goes on with what it has used."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, lessor: Lessor | None = None) -> None:
        """`lessor`: where several gateways share the limits of keys."""
        self._clock = clock
        self._lessor = lessor
        self._accounts: dict[str, Account] = {}

    def admit(self, key: ApiKey | None) -> Admission | Unlimited:
        """Let a request begin, to be used with `with`. Raises Refusal 429. None is nobody, who has no limits."""
        if key is None:
            return UNLIMITED
        account, now = self.account(key.name), self._clock()
        lease = None if self._lessor is None else self._lessor.lease(key, account, now)
        return Admission(key, account, self._clock, now, lease)

    def account(self, name: str) -> Account:
        """What the key of that name has used."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account()
        return account

    def used(self, now: float) -> list[str]:
        """The names of keys that have used anything."""
        return [name for name, account in self._accounts.items() if not account.idle(now)]

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible."""
        for account in self._accounts.values():
            account.check_integrity()


class Unlimited:
    """A request that counts nowhere."""

    def reserve(self, tokens: int) -> None:
        """Nothing is set aside."""

    def begin(self) -> None:
        """It counts for nothing."""

    def used(self, tokens: int) -> None:
        """That is nobody's."""

    def headers(self) -> list[RawHeader]:
        """None."""
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


UNLIMITED = Unlimited()


class Admission:
    """One request that counts. What it has reserved and not used is given back at the end of the `with` block."""

    def __init__(
        self, key: ApiKey, account: Account, clock: Callable[[], float], now: float, lease: Lease | None
    ) -> None:
        self.key = key
        self._account = account
        self._clock = clock
        self._lease = lease
        self._reserved = 0
        self._used: int | None = None
        self._begun = False
        terms = key.terms
        streams = terms.streams if lease is None else lease.share(Kind.STREAMS, now)
        if streams is not None and account.streams >= streams:
            if lease is not None:
                lease.refused(Kind.STREAMS, 1, now)
            assert terms.streams is not None
            raise self._told(too_many_streams(key.name, terms.streams))
        self._take(Kind.REQUESTS, 1, terms.requests_per_minute, account.requests, now)
        self._asked_in = self._reserved_in = account.requests.take(1, now)
        account.streams += 1

    def reserve(self, tokens: int) -> None:
        """Set so many tokens aside. Raises Refusal 429."""
        most, now = self.key.terms.tokens_per_minute, self._clock()
        if self._lease is not None and Kind.TOKENS not in self._lease.parts:
            most = None  # the limit was removed from the key's file since the request was admitted
        if most is not None and tokens > most:
            raise self._told(request_beyond_limit(self.key.name, tokens, most))
        self._take(Kind.TOKENS, tokens, most, self._account.tokens, now)
        self._reserved = tokens
        self._reserved_in = self._account.tokens.take(tokens, now)

    def _take(self, kind: Kind, amount: int, most: int | None, window: Window, now: float) -> None:
        """Raise Refusal 429 where there is no room for so much."""
        if most is None:
            return
        lease, share = self._lease, most
        if lease is not None:
            lease.note(kind, amount, now)
            share = lease.share(kind, now) or 0
        wait = window.seconds_until(amount, share, now)
        if wait > 0:
            if lease is not None:
                wait = lease.refused(kind, amount, now)
            raise self._told(rate_limited(self.key.name, kind.name.lower(), most, wait))

    def begin(self) -> None:
        """A replica has been sent the request: it counts as one."""
        self._begun = True

    def used(self, tokens: int) -> None:
        """The answer was begun, and has taken so many tokens, as far as is known."""
        self._used = tokens

    def headers(self) -> list[RawHeader]:
        """OpenAI's headers for the limits that the key has."""
        terms, lease, now = self.key.terms, self._lease, self._clock()
        found: list[RawHeader] = []
        for kind, (limit, remaining, reset), most, window in (
            (Kind.REQUESTS, _OF_REQUESTS, terms.requests_per_minute, self._account.requests),
            (Kind.TOKENS, _OF_TOKENS, terms.tokens_per_minute, self._account.tokens),
        ):
            if most is not None:
                seconds = math.ceil(window.seconds_until_empty(now))
                left = most - window.total - (0 if lease is None else lease.elsewhere(kind))
                found.append((limit, b"%d" % most))
                found.append((remaining, b"%d" % left if left > 0 else b"0"))
                found.append((reset, b"%ds" % seconds))
        return found

    def _told(self, refusal: Refusal) -> Refusal:
        refusal.headers += tuple((name.decode(), value.decode()) for name, value in self.headers())
        return refusal

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        account, now = self._account, self._clock()
        account.streams -= 1
        if not self._begun:
            account.requests.correct(self._asked_in, -1, now)
        account.tokens.correct(self._reserved_in, (self._used or 0) - self._reserved, now)
