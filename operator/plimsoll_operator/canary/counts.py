"""Counts of the requests to a revision's pods: all, failed, and a histogram of the time to first byte."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """`requests`: those whose response has begun, or that got none. `failed` of them got no response, one with a status
    of 500 or above, or one that broke off.

    `first_bytes`: pairs of an upper bound in seconds and how many of the `timed` streamed responses had their first
    data within it after the request arrived. The counts are cumulative.
    """

    requests: int = 0
    failed: int = 0
    timed: int = 0
    first_bytes: tuple[tuple[float, int], ...] = ()

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return _combined(self, other, 1)

    def __sub__(self, earlier: RequestCounts) -> RequestCounts:
        return _combined(self, earlier, -1)

    @property
    def rate(self) -> float:
        """The failed share of the requests, from 0 to 1; 0 without requests."""
        return self.failed / self.requests if self.requests else 0.0

    def check_integrity(self) -> None:
        """Raise AssertionError if the counts contradict each other."""
        assert 0 <= self.failed <= self.requests, f"{self.failed} of {self.requests} requests failed"
        counts = [count for _, count in self.first_bytes]
        assert counts == sorted(counts), f"cumulative counts fall: {counts}"
        assert all(0 <= count <= self.timed for count in counts)


NOTHING = RequestCounts()


def _combined(one: RequestCounts, other: RequestCounts, sign: int) -> RequestCounts:
    """Return `one` plus `sign` times `other`. If both have timed responses, bounds that only one of them has are left
    out, because the other's count is unknown there.
    """
    if not one.timed:
        first_bytes = tuple((bound, sign * count) for bound, count in other.first_bytes)
    elif not other.timed:
        first_bytes = one.first_bytes
    else:
        known = dict(other.first_bytes)
        first_bytes = tuple((bound, count + sign * known[bound]) for bound, count in one.first_bytes if bound in known)
    return RequestCounts(
        one.requests + sign * other.requests,
        one.failed + sign * other.failed,
        one.timed + sign * other.timed,
        first_bytes,
    )
