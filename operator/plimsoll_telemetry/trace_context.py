"""W3C Trace Context: which trace a request belongs to, and the headers that carry it between processes."""

from __future__ import annotations

import random
import re
from typing import NamedTuple

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MOST_STATE = 512
"""Characters of `tracestate` that must be passed on; a longer one is dropped, as the recommendation allows."""
MOST_STATE_MEMBERS = 32

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x20-\x7e]{0,200})?")
_STATE_MEMBER = re.compile(
    r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_SAMPLED = 1
_ids = random.SystemRandom()


class TraceContext(NamedTuple):
    """A span as other processes refer to it: the ids of its trace and of itself. `state` is for other tracing systems
    and is passed on unchanged.
    """

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""

    @property
    def trace(self) -> str:
        """The trace's id as 32 hexadecimal digits."""
        return f"{self.trace_id:032x}"

    def child(self) -> TraceContext:
        """Return a new span of the same trace."""
        return self._replace(span_id=new_span_id())

    @property
    def traceparent(self) -> str:
        """The value of the header `traceparent`."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED if self.sampled else 0:02x}"


def new_trace_id() -> int:
    """Return a random id of a trace."""
    return _ids.getrandbits(128) or 1


def new_span_id() -> int:
    """Return a random id of a span."""
    return _ids.getrandbits(64) or 1


def read_context(traceparent: str | None, tracestate: str | None = None) -> TraceContext | None:
    """Return the caller's span from its headers; None if there is none, or if `traceparent` is malformed.

    A malformed or too long `tracestate` is ignored. Versions later than 00 may append fields, which are ignored too.
    """
    if traceparent is None or len(traceparent) > 256:
        return None
    found = _PARENT.fullmatch(traceparent.strip(" \t"))
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == "ff" or (version == "00" and more is not None) or not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED), _state(tracestate))


def _state(tracestate: str | None) -> str:
    if not tracestate or len(tracestate) > MOST_STATE:
        return ""
    members = [member.strip(" \t") for member in tracestate.split(",")]
    given = [member for member in members if member]
    if len(given) > MOST_STATE_MEMBERS or not all(map(_STATE_MEMBER.fullmatch, given)):
        return ""
    return ",".join(given)
