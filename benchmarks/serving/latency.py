"""Times of tokens, and latencies computed from them. It needs only the standard library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PERCENTILES = (50, 80, 99)


@dataclass(slots=True)
class Timeline:
    """When a request was sent and when its tokens arrived, on one clock in seconds."""

    sent: float
    arrivals: list[float] = field(default_factory=list)


def latencies(timelines: list[Timeline], users: int) -> dict[str, Any]:
    """Return percentiles in milliseconds: to the first token (of all requests, of the first burst, of later ones), and
    between tokens. `timelines` are in the order in which the requests were sent: the first `users` of them are the
    burst. Outputs of one token have no time between tokens; if all are, it is 0.
    """
    waits = [t.arrivals[0] - t.sent for t in timelines]
    gaps = [b - a for t in timelines for a, b in zip(t.arrivals, t.arrivals[1:], strict=False)]
    later = waits[users:]
    return {
        "ttft_ms": percentiles(waits),
        "ttft_burst_ms": percentiles(waits[:users]),
        "ttft_later_ms": percentiles(later) if later else None,
        "itl_ms": percentiles(gaps or [0.0]),
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return p50, p80 and p99 in milliseconds."""
    ranked = sorted(seconds)
    return {f"p{p}": round(1000 * ranked[min(len(ranked) - 1, len(ranked) * p // 100)], 2) for p in PERCENTILES}


def expect(tokens: int, wanted: int) -> None:
    """Raise RuntimeError if a system generated another number of tokens than requested, because its time would be
    meaningless.
    """
    if tokens != wanted:
        raise RuntimeError(f"{tokens} tokens came instead of {wanted}")
