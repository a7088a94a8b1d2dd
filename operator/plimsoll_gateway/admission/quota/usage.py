"""Usage of one key, by quota."""

from __future__ import annotations

from enum import IntEnum

from plimsoll_gateway.admission.quota.sliding_window import Window


class Kind(IntEnum):
    """The kinds of quotas."""

    REQUESTS = 0
    TOKENS = 1
    STREAMS = 2


class Usage:
    """Usage of one key at this gateway. The limits are passed with each request, since they may change."""

    def __init__(self) -> None:
        self.requests = Window()
        self.tokens = Window()
        self.streams = 0

    def used(self, kind: Kind, now: float) -> int:
        """Return the usage of a quota: of the last minute, or for streams the current number."""
        if kind is Kind.STREAMS:
            return self.streams
        window = self.requests if kind is Kind.REQUESTS else self.tokens
        window.forget(now)
        return window.total

    def idle(self, now: float) -> bool:
        """Return whether the key has used nothing in the last minute and has no open stream."""
        return not any(self.used(kind, now) for kind in Kind)

    def check_integrity(self) -> None:
        """Raise AssertionError if a count is impossible."""
        self.requests.check_integrity()
        self.tokens.check_integrity()
        assert self.streams >= 0, f"{self.streams} streams are open"
