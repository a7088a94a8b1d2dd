"""Progress of a start, as the process that loads a model sends it."""

from __future__ import annotations

from collections.abc import Callable

from plimsoll_runtime.engine.protocol.messages import LoadProgress

PROGRESS_STEP = 0.01


class ProgressReport:
    """Sends progress if it changed by at least `PROGRESS_STEP`."""

    def __init__(self, send: Callable[[LoadProgress], None]) -> None:
        self._send = send
        self._last = ("", 0.0)

    def __call__(self, stage: str, fraction: float, transfer: object = None) -> None:
        last_stage, last = self._last
        if stage != last_stage or fraction >= last + PROGRESS_STEP or last < fraction == 1.0:
            self._last = (stage, fraction)
            self._send(LoadProgress(stage, fraction))
