"""Makes traces of starts of models."""

from __future__ import annotations

from plimsoll_runtime.api.telemetry.start_spans import StartSpans
from plimsoll_runtime.engine.protocol.messages import EngineInfo
from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.utils.start_record import StartRecord
from plimsoll_telemetry.span import Attributes, unix_offset_ns
from plimsoll_telemetry.tracer import Tracer


class StartReporter:
    """Takes the records of starts. Each is a trace, whatever share of requests is sampled: starts are rare and slow."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def ended(
        self, record: StartRecord, about: Attributes, info: EngineInfo | None = None, error: BaseException | None = None
    ) -> None:
        """Report a start that has ended, with an `error` if it failed. Call it once for each record.

        The text of the error is left out: it may have paths, and the log has it.
        """
        what = None if error is None else error.kind.value if isinstance(error, PlimsollError) else "internal"
        spans = StartSpans(record.kind, record.end(), about, info, what, record.downloaded, unix_offset_ns())
        self._tracer.finish(spans)
