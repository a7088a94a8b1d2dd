"""A tracer that keeps spans."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_telemetry.settings import TracingSettings
from plimsoll_telemetry.span import Span
from plimsoll_telemetry.tracer import Tracer


class KeptSpans:
    """A tracer with an exporter that keeps what it is given. `most`: traces a second."""

    def __init__(self, most: float = 1e6, ratio: float = 1.0) -> None:
        self._spans: list[Span] = []
        self.tracer = Tracer(TracingSettings(delay=3600.0, most=most, ratio=ratio), lambda: self)

    def send(self, spans: Sequence[Span]) -> None:
        """Keep spans."""
        self._spans += spans

    def close(self) -> list[Span]:
        """End the tracer, and return all spans."""
        self.tracer.close(30.0)
        return self._spans


def check_tree(spans: Sequence[Span], caller: int = 0) -> Span:
    """Check that the spans are one trace, whose root has this parent; return the root.

    Children of one process lie within their parent.
    """
    known = {span.span_id: span for span in spans}
    assert len(known) == len(spans), "two spans have the same id"
    assert len({span.trace_id for span in spans}) == 1
    (root,) = [span for span in spans if span.parent_id == caller]
    for span in spans:
        assert span.start_ns <= span.end_ns
        if span is not root:
            parent = known[span.parent_id]
            assert parent.start_ns <= span.start_ns
            assert span.end_ns <= parent.end_ns, f"{span.name} ends after {parent.name}"
    return root
