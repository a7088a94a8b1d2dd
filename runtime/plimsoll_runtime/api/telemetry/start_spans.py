"""The spans of one start of a model, made from its record once it is ready or has failed."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.engine.protocol.messages import EngineInfo
from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.phases import Phase
from plimsoll_telemetry.span import Attributes, AttributeValue, Span
from plimsoll_telemetry.trace_context import new_span_id, new_trace_id


class StartSpans:
    """Makes the spans of a start: the start and its stages. `kind` is "load", "wake" or "fetch"; `about` are attributes
    of the model.

    `error`: why it failed; None if it did not. `info`: None if it failed, or if no engine was started.
    """

    def __init__(
        self,
        kind: str,
        stages: Sequence[Phase],
        about: Attributes,
        info: EngineInfo | None,
        error: str | None,
        downloaded: int,
        offset_ns: int,
    ) -> None:
        self._kind = kind
        self._stages = stages
        self._about = about
        self._info = info
        self._error = error
        self._downloaded = downloaded
        self._offset_ns = offset_ns

    def __call__(self) -> list[Span]:
        """Return the spans, parents first."""
        root = Span(
            f"{self._kind} model",
            new_trace_id(),
            new_span_id(),
            0,
            self._stages[0].start_ns + self._offset_ns,
            self._stages[-1].end_ns + self._offset_ns,
            self._attributes(),
            error=self._error,
        )
        spans = [root]
        for stage in self._stages:
            failed = self._error if stage is self._stages[-1] else None
            start_ns, end_ns = stage.start_ns + self._offset_ns, stage.end_ns + self._offset_ns
            spans.append(root.child(stage.name, start_ns, end_ns, error=failed))
        return spans

    def _attributes(self) -> Attributes:
        found: dict[str, AttributeValue] = dict(self._about)
        if self._downloaded:
            found[names.DOWNLOADED_BYTES] = self._downloaded
        if (info := self._info) is not None:
            found |= {
                names.DEVICE: info.device,
                names.DTYPE: info.dtype,
                names.ARCHITECTURE: info.architecture,
                names.ATTENTION_BACKEND: info.attention_backend,
                names.WEIGHT_BYTES: info.weight_bytes,
                names.KV_BYTES: info.kv_bytes,
                names.WORKSPACE_BYTES: info.workspace_bytes,
            }
        return found
