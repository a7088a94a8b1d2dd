"""The record of one start of a model: its stages, from the first to ready or failed."""

from __future__ import annotations

from plimsoll_runtime.utils.progress import DOWNLOAD, Transfer
from plimsoll_telemetry.phases import Phase, Phases


class StartRecord:
    """Records when each stage begins. It is a `TransferProgress`, so that loads report to it.

    `kind`: what starts ("load", "wake", "fetch"). `downloaded`: bytes that were downloaded.
    """

    def __init__(self, kind: str = "load", stage: str = "start") -> None:
        self.kind = kind
        self.downloaded = 0
        self._stage = stage
        self._phases = Phases()

    @property
    def began_ns(self) -> int:
        """When it began, in nanoseconds of the monotonic clock."""
        return self._phases.began_ns

    def __call__(self, stage: str, fraction: float, transfer: Transfer | None = None) -> None:
        """Record the progress of a stage, which is another one than before or the same."""
        if stage != self._stage:
            self._phases.end(self._stage)
            self._stage = stage
        if stage == DOWNLOAD and transfer is not None:
            self.downloaded = max(self.downloaded, transfer.done)

    def end(self) -> list[Phase]:
        """Record the end of the last stage, and return all stages in order. Call it once."""
        self._phases.end(self._stage)
        return self._phases.all()
