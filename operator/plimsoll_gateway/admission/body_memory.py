"""The limit on the bytes of request bodies that one gateway holds at the same time.

A limit per request does not bound the process: many requests of a legal size would together fill its memory. All bodies
therefore share one limit, and a body that does not fit is refused immediately. A quarter of it is reserved for requests
of at most 64 KiB, the majority, so that a few long prompts that wait do not block all others.
"""

from __future__ import annotations

from plimsoll_gateway.errors.refusals import too_many_bytes
from plimsoll_gateway.telemetry.metrics import Metrics

SMALL_BYTES = 64 << 10
MOST_HELD = 128 << 20


def most_of_one(most: int) -> int:
    """Return three quarters of `most` bytes: the part of the body memory that bodies over 64 KiB may fill."""
    return most - most // 4


class BodyMemory:
    """Counts the bytes of all held bodies. Use on the event loop only."""

    def __init__(self, most: int, metrics: Metrics) -> None:
        self._most = most
        self._metrics = metrics
        self.held = 0
        metrics.body_bytes.set_function(lambda: self.held)

    def check(self, more: int, size: int) -> None:
        """Raise Refusal 503 if `more` bytes of a body do not fit now.

        `size`: bytes of the body, these included. A body over 64 KiB may not use the reserved quarter.
        """
        if self.held + more > (self._most if size <= SMALL_BYTES else most_of_one(self._most)):
            self._metrics.refused_bodies.inc()
            raise too_many_bytes(self._most)

    def take(self, more: int, size: int) -> None:
        """Count `more` bytes of a body that has `size` bytes with them. Raises Refusal 503 if they do not fit."""
        self.check(more, size)
        self.held += more

    def give(self, size: int) -> None:
        """Release `size` bytes."""
        self.held -= size

    def check_integrity(self) -> None:
        """Raise AssertionError if the count is impossible."""
        assert 0 <= self.held <= self._most, f"{self.held} of {self._most} bytes are held"
