"""Shows the progress of loads and batch jobs on standard error: bars on a terminal, else lines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from plimsoll_runtime.batch.job import Answered, Row, Tally
from plimsoll_runtime.utils.progress import Rate, Transfer, TransferProgress, transfer_text


@contextlib.contextmanager
def console_progress(stream: TextIO) -> Iterator[TransferProgress]:
    """Yield a callback that shows a progress bar (or lines) for each loading stage."""
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
    """Prints one line when a stage starts and one when it is done."""

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


LINE_SECONDS = 30.0
LOOK_ROWS = 64
"""Number of rows between two updates of the display."""


class Board:
    """Counts processed rows. `show` gets the counts as text, and the number of input bytes processed."""

    def __init__(self, show: Callable[[str, int], None], start: Callable[[int], None]) -> None:
        self._show = show
        self._start = start
        self._tally = Tally()
        self._resumed = self._read = 0
        self._began = time.monotonic()

    def begin(self, total: int, resumed: int) -> None:
        """Start the count and the clock, for `total` bytes of input. `resumed` rows are done by earlier runs."""
        self._resumed, self._began = resumed, time.monotonic()
        self._start(total)

    def passed(self, row: Row) -> None:
        """Count a row that an earlier run has processed."""
        self._read += row.size

    def told(self, row: Row, answered: Answered) -> None:
        """Count a row and its result."""
        self._tally = self._tally.plus(answered)
        self._read += row.size
        if self._tally.rows % LOOK_ROWS == 0:
            self._show(self._words(), self._read)

    def finish(self) -> None:
        """Show the final counts."""
        if self._tally.rows:
            self._show(self._words(), self._read)

    def _words(self) -> str:
        tally, seconds = self._tally, time.monotonic() - self._began
        tokens = tally.prompt_tokens + tally.completion_tokens
        cached = tally.cached_tokens / tally.prompt_tokens if tally.prompt_tokens else 0.0
        failed = f", {tally.failed} failed" if tally.failed else ""
        rows = f"{self._resumed + tally.rows} rows{failed}"
        return f"{rows}, {tokens / seconds if seconds else 0:.0f} tokens/s, {cached:.0%} of prompts cached"


@contextlib.contextmanager
def board(stream: TextIO, before: Callable[[], None]) -> Iterator[Board]:
    """Yield a board for the duration of the run. `before` is called before the board is first shown."""
    if not stream.isatty():
        yield _lines(stream, before)
        return
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=Console(file=stream))
    task = bars.add_task("", total=None)

    def start(total: int) -> None:
        before()
        bars.update(task, total=total)
        bars.start()

    shown = Board(lambda words, read: bars.update(task, description=words, completed=read), start)
    try:
        yield shown
        shown.finish()
    finally:
        bars.stop()


def _lines(stream: TextIO, before: Callable[[], None]) -> Board:
    last, whole = time.monotonic(), 1

    def start(total: int) -> None:
        nonlocal last, whole
        before()
        last, whole = time.monotonic(), max(1, total)

    def show(words: str, read: int) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            print(f"{read / whole:.0%} of the input, {words}", file=stream, flush=True)

    return Board(show, start)
