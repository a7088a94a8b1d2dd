"""The record of one request: its phases in the gateway, and each attempt to have a replica answer it."""

from __future__ import annotations

from typing import Protocol

from plimsoll_telemetry.phases import Phases
from plimsoll_telemetry.trace_context import TraceContext

ATTEMPT, TURN, HOLD = "attempt", "turn", "hold"


class Attempt:
    """One attempt. `span` is its span, None if traces are off. `failure` is why it failed, `status` the replica's
    answer, `headers_ns` when that began, by the monotonic clock.
    """

    __slots__ = ("failure", "headers_ns", "replica", "span", "status")

    def __init__(self, replica: str, span: TraceContext | None) -> None:
        self.replica = replica
        self.span = span
        self.failure: str | None = None
        self.status: int | None = None
        self.headers_ns: int | None = None


class StreamTimes(Protocol):
    """The times of a streamed response, in seconds."""

    first: float | None
    """From the request's arrival to the first event; None before that."""

    @property
    def mean_gap(self) -> float | None:
        """The mean between two events; None before the second one."""


class RequestRecord:
    """Collects the facts about a request, for its log line, metrics and spans.

    `span` is the request's own span, whose parent is `parent_id`; None if traces are off. `trace_id` is the id of its
    trace, the caller's also then. `reasons`: why the request waited for a replica, by the phase in which it did.
    `streams`: the client asked for a stream. `times`: those of a streamed response, None without one.
    """

    __slots__ = ("_open", "attempts", "parent_id", "phases", "reasons", "span", "streams", "times", "trace_id")

    def __init__(self, span: TraceContext | None = None, parent_id: int = 0, trace_id: str | None = None) -> None:
        self.span = span
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.phases = Phases()
        self.attempts: list[Attempt] = []
        self.reasons: dict[str, str] = {}
        self.streams = False
        self.times: StreamTimes | None = None
        self._open = False

    def begin_attempt(self, replica: str) -> Attempt:
        """Record that a replica is asked now."""
        self.phases.end("pick")
        self._open = True
        self.attempts.append(Attempt(replica, None if self.span is None else self.span.child()))
        return self.attempts[-1]

    @property
    def failure(self) -> str | None:
        """Why the last failed attempt failed; None if none has."""
        return next((attempt.failure for attempt in reversed(self.attempts) if attempt.failure is not None), None)

    def end_attempt(self) -> None:
        """Record that the last attempt has ended, with or without a response."""
        if self._open:
            self.phases.end(ATTEMPT)
            self._open = False

    def finish(self) -> int:
        """Record that the request has ended; return when, in nanoseconds of the monotonic clock."""
        self.end_attempt()
        return self.phases.end("respond")
