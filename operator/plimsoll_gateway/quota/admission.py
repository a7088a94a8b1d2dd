"""A key's request from its arrival to its end, and what it counts for.

Refused requests count for nothing, nor does one whose client hangs up while it waits for its turn. Tokens are reserved
as the body lets expect, and corrected once the answer tells what they were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from plimsoll_gateway.errors import Refusal, rate_limited, request_beyond_limit, too_many_streams
from plimsoll_gateway.keys.record import ApiKey
from plimsoll_gateway.quota.window import Window

RawHeader = tuple[bytes, bytes]


class Account:
    """What one key has used; the limits come with each request, for they may have changed."""

    def __init__(self) -> None:
        self.requests = Window()
        self.tokens = Window()
        self.streams = 0

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible."""
        self.requests.check_integrity()
        self.tokens.check_integrity()
        assert self.streams >= 0, f"{self.streams} requests are under way"


class Quotas:
    """The accounts of all keys, by name: a key that is renewed goes on with what it has used."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    def admit(self, key: ApiKey | None) -> Admission | Unlimited:
        """Let a request begin, to be used with `with`. Raises Refusal 429. None is nobody, who has no limits."""
        if key is None:
            return UNLIMITED
        account = self._accounts.get(key.name)
        if account is None:
            account = self._accounts[key.name] = Account()
        return Admission(key, account, self._clock)

    def account(self, name: str) -> Account | None:
        """What the key of that name has used; None where it has never asked."""
        return self._accounts.get(name)

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

    def __init__(self, key: ApiKey, account: Account, clock: Callable[[], float]) -> None:
        self.key = key
        self._account = account
        self._clock = clock
        self._reserved = 0
        self._used: int | None = None
        self._begun = False
        terms, now = key.terms, clock()
        if terms.streams is not None and account.streams >= terms.streams:
            raise self._told(too_many_streams(key.name, terms.streams))
        if terms.requests_per_minute is not None:
            wait = account.requests.seconds_until(1, terms.requests_per_minute, now)
            if wait > 0:
                raise self._told(rate_limited(key.name, "requests", terms.requests_per_minute, wait))
        self._asked_in = self._reserved_in = account.requests.take(1, now)
        account.streams += 1

    def reserve(self, tokens: int) -> None:
        """Set so many tokens aside. Raises Refusal 429."""
        most, now = self.key.terms.tokens_per_minute, self._clock()
        if most is not None:
            if tokens > most:
                raise self._told(request_beyond_limit(self.key.name, tokens, most))
            wait = self._account.tokens.seconds_until(tokens, most, now)
            if wait > 0:
                raise self._told(rate_limited(self.key.name, "tokens", most, wait))
        self._reserved = tokens
        self._reserved_in = self._account.tokens.take(tokens, now)

    def begin(self) -> None:
        """A replica gets the request: from now on it counts as one."""
        self._begun = True

    def used(self, tokens: int) -> None:
        """The answer was begun, and has taken so many tokens, as far as is known."""
        self._used = tokens

    def headers(self) -> list[RawHeader]:
        """OpenAI's headers for the limits that the key has."""
        terms, now = self.key.terms, self._clock()
        found: list[RawHeader] = []
        for kind, most, window in (
            (b"requests", terms.requests_per_minute, self._account.requests),
            (b"tokens", terms.tokens_per_minute, self._account.tokens),
        ):
            if most is not None:
                reset = window.seconds_until_empty(now)
                found += [
                    (b"x-ratelimit-limit-" + kind, b"%d" % most),
                    (b"x-ratelimit-remaining-" + kind, b"%d" % max(0, most - window.total)),
                    (b"x-ratelimit-reset-" + kind, b"%ds" % math.ceil(reset)),
                ]
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
