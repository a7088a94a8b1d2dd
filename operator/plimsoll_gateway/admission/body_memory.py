"""Memory for the bodies of requests: how many bytes of them one gateway holds at once.

A limit for each request does not bound a process: many requests of a legal size together would fill its memory. So all
bodies share one limit, and what does not fit is refused at once. Large bodies may not use it up: a quarter is kept for
requests of at most 64 KiB, which are most of them, so that a few long prompts that wait leave everybody else alone.
"""

from __future__ import annotations

from plimsoll_gateway.errors.refusals import too_many_bytes
from plimsoll_gateway.telemetry.metrics import Metrics

SMALL_BYTES = 64 << 10
MOST_HELD = 128 << 20


def most_of_one(most: int) -> int:
    """The largest body that `most` bytes of memory can hold."""
    return most - most // 4


class BodyMemory:
    """Counts the bytes of all bodies that are held. Changed on the event loop only."""

    def __init__(self, most: int, metrics: Metrics) -> None:
        self._most = most
        self._metrics = metrics
        self.held = 0
        metrics.body_bytes.set_function(lambda: self.held)

    def check(self, more: int, size: int) -> None:
        """Raise Refusal 503 where there is no room for `more` bytes with which a body has `size`."""
        if self.held + more > (self._most if size <= SMALL_BYTES else most_of_one(self._most)):
            self._metrics.refused_bodies.inc()
            raise too_many_bytes(self._most)

    def take(self, more: int, size: int) -> None:
        """A body grows by `more` bytes to `size`. Raises Refusal 503 where there is no room for them."""
        self.check(more, size)
        self.held += more

    def give(self, size: int) -> None:
        """So many bytes are held no longer."""
        self.held -= size

    def check_integrity(self) -> None:
        """Raise AssertionError where the count is impossible."""
        assert 0 <= self.held <= self._most, f"{self.held} of {self._most} bytes are held"
