"""Progress of long work on standard error: a bar on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def console_progress(stream: TextIO) -> Iterator[Callable[[str, float], None]]:
    """Yield a callback (stage, fraction from 0 to 1) that shows the stages one below the other."""
    if not stream.isatty():
        yield _PlainLines(stream)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=stream)) as bars:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, fraction: float) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=fraction)

        yield show


class _PlainLines:
    """One line when a stage begins and one when it is done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._seen: dict[str, bool] = {}

    def __call__(self, stage: str, fraction: float) -> None:
        done = fraction >= 1.0
        if self._seen.get(stage) is done or self._seen.get(stage):
            return
        self._seen[stage] = done
        print(f"{stage}: {'done' if done else 'started'}", file=self._stream, flush=True)
