"""Spans as plain records: what exporters encode."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from plimsoll_telemetry.trace_context import new_span_id

AttributeValue = str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float]
Attributes = Mapping[str, AttributeValue]


NONE: Attributes = MappingProxyType({})


class SpanKind(Enum):
    """Which side of a request a span is on."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class SpanEvent(NamedTuple):
    """An instant within a span, in nanoseconds of Unix time."""

    name: str
    at_ns: int
    attributes: Attributes = NONE


class SpanLink(NamedTuple):
    """A span of another trace, or another span of the same one, that belongs to this one's work."""

    trace_id: int
    span_id: int


class Span(NamedTuple):
    """One part of a trace, from `start_ns` to `end_ns` in nanoseconds of Unix time. `parent_id` 0: it is the root.

    `error`: why the work failed; None if it did not. `state`: the `tracestate` of its trace.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: Attributes = NONE
    kind: SpanKind = SpanKind.INTERNAL
    events: Sequence[SpanEvent] = ()
    links: Sequence[SpanLink] = ()
    error: str | None = None
    state: str = ""

    def child(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Attributes = NONE,
        events: Sequence[SpanEvent] = (),
        error: str | None = None,
    ) -> Span:
        """Return a new span of the same trace, below this one."""
        return Span(
            name,
            self.trace_id,
            new_span_id(),
            self.span_id,
            start_ns,
            end_ns,
            attributes,
            events=events,
            error=error,
            state=self.state,
        )


def unix_offset_ns() -> int:
    """Return what must be added to the monotonic clock to get Unix time, in nanoseconds."""
    before = time.monotonic_ns()
    now = time.time_ns()
    return now - (before + time.monotonic_ns()) // 2
