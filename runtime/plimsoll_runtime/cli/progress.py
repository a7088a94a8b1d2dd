"""Progress of long work on standard error: a bar on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from plimsoll_runtime.utils.progress import Rate, Transfer, TransferProgress, transfer_text


@contextlib.contextmanager
def console_progress(stream: TextIO) -> Iterator[TransferProgress]:
    """Yield a callback that shows the stages one below the other."""
    if not stream.isatty():
        yield _PlainLines(stream)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[bytes]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=stream)) as bars:
        tasks: dict[str, TaskID] = {}

        rate = Rate()

        def show(stage: str, fraction: float, transfer: Transfer | None = None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0, bytes="")
            bars.update(tasks[stage], completed=fraction)
            if transfer is not None:
                text = transfer_text(transfer, rate.update(time.monotonic(), transfer.done))
                bars.update(tasks[stage], bytes=text)

        yield show


class _PlainLines:
    """One line when a stage begins and one when it is done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._seen: dict[str, bool] = {}

    def __call__(self, stage: str, fraction: float, transfer: Transfer | None = None) -> None:
        done = fraction >= 1.0
        if self._seen.get(stage) is done or self._seen.get(stage):
            return
        self._seen[stage] = done
        size = "" if transfer is None else f", {transfer_text(transfer, None)}"
        print(f"{stage}: {'done' if done else 'started'}{size}", file=self._stream, flush=True)
