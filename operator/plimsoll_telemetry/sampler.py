"""Chooses the requests that are traced."""

from __future__ import annotations

import time
from collections.abc import Callable

from plimsoll_telemetry.trace_context import TraceContext, new_span_id, new_trace_id

_LOW_BITS = 56
"""The random bits of a trace's id that decide, as in W3C Trace Context level 2: all processes choose the same traces.
"""


class Sampler:
    """Samples by the caller's choice, or else a share of traces, and never more than `most` traces a second.

    The bound is a bucket that holds one second's traces: clients that ask for each of their requests to be traced
    cannot make this process spend more than that.
    """

    def __init__(self, ratio: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`ratio` is the share, from 0 to 1, of requests that have no sampling decision of their caller."""
        self._threshold = round((1 - ratio) * (1 << _LOW_BITS))
        self._most = most
        self._clock = clock
        self._left = most
        self._filled = clock()
        self.over_bound = 0

    def begin(self, caller: TraceContext | None) -> TraceContext:
        """Return the span of a request, in the caller's trace or in a new one, with the decision whether it is sampled.
        Unsampled spans have ids too: log lines and other processes name the trace.
        """
        if caller is None:
            trace_id = new_trace_id()
            sampled = (trace_id & ((1 << _LOW_BITS) - 1)) >= self._threshold
            return TraceContext(trace_id, new_span_id(), sampled and self._take())
        return caller._replace(span_id=new_span_id(), sampled=caller.sampled and self._take())

    def _take(self) -> bool:
        """Take one trace from the bucket; count it if there is none."""
        now = self._clock()
        self._left = min(max(self._most, 1.0), self._left + (now - self._filled) * self._most)
        self._filled = now
        if self._left < 1:
            self.over_bound += 1
            return False
        self._left -= 1
        return True
