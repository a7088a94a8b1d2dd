"""Chooses the requests that are traced."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from plimsoll_telemetry.trace_context import TraceContext, new_span_id, new_trace_id

_LOW_BITS = 56
"""The random bits of a trace's id that decide, as in W3C Trace Context level 2: all processes choose the same traces.
"""


class Sampler:
    """Samples by the caller's choice, or else a share of traces, and at most `most` traces in any second.

    Clients that ask for each of their requests to be traced cannot make this process spend more than that.
    """

    def __init__(self, ratio: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`ratio` is the share, from 0 to 1, of requests that have no sampling decision of their caller. `most` below 1
        is one trace in 1 / `most` seconds.
        """
        self._threshold = round((1 - ratio) * (1 << _LOW_BITS))
        self._clock = clock
        self._window = max(1.0, 1 / most) if most > 0 else 0.0
        self._latest: deque[float] = deque(maxlen=max(1, int(most)))
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
        """Return whether one more trace is within the bound. Count it if it is not."""
        now, latest = self._clock(), self._latest
        if not self._window or (len(latest) == latest.maxlen and now - latest[0] < self._window):
            self.over_bound += 1
            return False
        latest.append(now)
        return True
