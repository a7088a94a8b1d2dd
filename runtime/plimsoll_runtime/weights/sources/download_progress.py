"""Counts the bytes of a download by the hub library, by way of the progress bars that it would show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tqdm.std import tqdm  # type: ignore[import-untyped]

from plimsoll_runtime.utils.progress import OnTransfer, Transfer

EVERY_SECONDS = 0.2
"""Between two reports."""


class Tally:
    """`on_transfer` is called in threads of the library. `total` is asked for once bytes come, and may take a while.

    The library's own total grows with each file that it begins.
    """

    def __init__(self, on_transfer: OnTransfer, total: Callable[[], int]) -> None:
        self._on_transfer = on_transfer
        self._ask_total = total
        self._total: int | None = None
        self._done = 0
        self._reported = -EVERY_SECONDS
        self._lock = threading.Lock()

    def bars(self) -> type[Any]:
        """The library's `tqdm_class`. Its bars show nothing.

        There is one for bytes of the network and one for bytes of files; older versions have one for both, or none.
        """
        tally = self

        class Bar(tqdm):  # type: ignore[misc]
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **{**options, "disable": True})
                self.counts_bytes = options.get("unit") == "B"

            def update(self, n: float | None = 1) -> bool | None:
                if self.counts_bytes and n:
                    with tally._lock:
                        self.n += n
                        tally._count(int(self.n))
                return None

        return Bar

    def _count(self, done: int) -> None:
        """One of the bars has come so far. The lock is held."""
        self._done = max(self._done, done)
        if self._total is None:
            self._total = self._ask_total()
        now = time.monotonic()
        if now - self._reported >= EVERY_SECONDS or 0 < self._total <= self._done:
            self._reported = now
            self._on_transfer(Transfer(min(self._done, self._total or self._done), self._total))
