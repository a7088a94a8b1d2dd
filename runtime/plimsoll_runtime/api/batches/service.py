"""Files and batches of one server: where they are kept, who works on them, and the routes to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import Counter

from plimsoll_runtime.api.batches.options import BatchOptions
from plimsoll_runtime.api.batches.pace import Pace
from plimsoll_runtime.api.batches.routes import BatchRoutes
from plimsoll_runtime.api.batches.vault import Vault
from plimsoll_runtime.api.batches.work import Shift
from plimsoll_runtime.api.batches.worker import Worker
from plimsoll_runtime.api.table import ModelTable

logger = logging.getLogger(__name__)


class BatchService:
    """One server's, from before its models are there to its end. None of `options`: it keeps no files."""

    def __init__(self, options: BatchOptions | None) -> None:
        """Raises UsageError for a folder that cannot be used."""
        self._options = options
        self._vault = None if options is None else Vault(options.folder, options.most_bytes)
        self._worker: Worker | None = None
        self._working: asyncio.Task[None] | None = None
        self.lines = Counter(
            "plimsoll_batch_lines", "Lines of batches, by what became of them.", ("model", "outcome"), registry=None
        )
        self.routes = BatchRoutes(self._vault, lambda: self._worker)

    def start(self, models: ModelTable, live: Callable[[], int]) -> None:
        """Work, once there are models; `live`: how many requests of clients are in flight."""
        if self._options is None or self._vault is None:
            return
        pace = Pace(self._options.at_once, live)
        self._worker = Worker(self._vault, Shift(models, pace, self._options.shared, self.lines))
        self._working = asyncio.create_task(self._worker.run())
        self._working.add_done_callback(_log_failure)

    async def stop(self) -> None:
        """Put the work down: it is taken up again by whoever starts next."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait({self._working})


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("batches are not worked on any more", exc_info=error)
