"""The loaded systems: each in its own process from its first round until it fails or the run ends."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from serving.systems import SYSTEMS
from serving.worker import SystemFailed, Worker
from serving.workloads import Workload

REASON_LENGTH = 120
WARM_UP_SCALE, WARM_UP_ROUND = 0.1, 0
"""After loading, a system runs a small untimed workload, because some compile their kernels only then."""


class Pool:
    """Workers by system, for workloads of one shape. `absent` says why a system takes no part."""

    def __init__(self, threads: int, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: variables that select another tree's sources; None: this tree's."""
        self._threads = threads
        self._environment = environment
        self._workers: dict[str, Worker] = {}
        self.absent = {name: reason for name, entry in SYSTEMS.items() if (reason := entry.absent()) is not None}

    def run(self, system: str, work: Workload, scale: float, number: int) -> dict[str, Any]:
        """Run one round. Raises SystemFailed, and from then on the system is absent."""
        try:
            if system not in self._workers:
                self._workers[system] = Worker(system, work.shape, self._threads, self._environment)
                self._workers[system].run(work.name, min(scale, WARM_UP_SCALE), WARM_UP_ROUND)
            return self._workers[system].run(work.name, scale, number)
        except SystemFailed as error:
            self.absent[system] = f"failed: {error.reason[:REASON_LENGTH]}"
            if (worker := self._workers.pop(system, None)) is not None:
                worker.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.close()
