"""What one key has used of each of its quotas."""

from __future__ import annotations

from enum import IntEnum

from plimsoll_gateway.admission.quota.sliding_window import Window


class Kind(IntEnum):
    """What a quota is of."""

    REQUESTS = 0
    TOKENS = 1
    STREAMS = 2


class Usage:
    """What one key has used here; the limits come with each request, for they may have changed."""

    def __init__(self) -> None:
        self.requests = Window()
        self.tokens = Window()
        self.streams = 0

    def used(self, kind: Kind, now: float) -> int:
        """Of one quota: in the last minute, or at this moment."""
        if kind is Kind.STREAMS:
            return self.streams
        window = self.requests if kind is Kind.REQUESTS else self.tokens
        window.forget(now)
        return window.total

    def idle(self, now: float) -> bool:
        """Whether nothing counts any more."""
        return not any(self.used(kind, now) for kind in Kind)

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible."""
        self.requests.check_integrity()
        self.tokens.check_integrity()
        assert self.streams >= 0, f"{self.streams} requests are under way"
