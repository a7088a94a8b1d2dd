"""A stand-in for the tracer that makes spans at once and keeps them, and an engine's description for such spans."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.engine.protocol.messages import EngineInfo
from plimsoll_telemetry.sampler import Sampler
from plimsoll_telemetry.span import Span
from plimsoll_telemetry.tracer import MakeSpans

INFO = EngineInfo("m", "A", "bfloat16", "cpu", "cpu", 10, 100, 16, 10, 1000, 2000, [1])


class CollectedTraces:
    """The parts of a tracer that reporters use; keeps the spans."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.sampler = Sampler(ratio, 100.0)
        self.traces: list[Sequence[Span]] = []

    def finish(self, make: MakeSpans) -> None:
        self.traces.append(make())
