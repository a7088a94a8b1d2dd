"""The display of a laptop run: a live table on a terminal, else lines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from plimsoll_runtime.local.processes.status_board import Board, Phase, Status

STYLES = {
    Phase.STARTING: "dim",
    Phase.LOADING: "yellow",
    Phase.READY: "green",
    Phase.UNREADY: "yellow",
    Phase.WAITING: "red",
    Phase.FAILED: "red",
    Phase.STOPPED: "dim",
}
REFRESHES_PER_SECOND = 4
PERCENT_STEP = 10  # of a stage: progress from one printed line to the next if there is no terminal

Rows = Callable[[], Sequence[tuple[str, str]]]


class Display:
    """Shows a board's statuses; `rows` returns further rows of the table.

    Use as a context manager; `paused` frees the terminal for other output.
    """

    def __init__(self, board: Board, console: Console, rows: Rows = tuple) -> None:
        self._board = board
        self._rows = rows
        self._console = console
        self._live: Live | None = None
        self._said: dict[str, tuple[str, int]] = {}
        board.listen(self._changed)

    def __enter__(self) -> Display:
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        self._hide()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the live table for the duration of the context."""
        self._hide()
        try:
            yield
        finally:
            self._show()

    def change(self, text: str, style: str = "") -> None:
        """Print a line, unless the console is a terminal: there the live table shows the change."""
        if not self._console.is_terminal:
            self.line(text, style)

    def line(self, text: str, style: str = "") -> None:
        """Print a line that stays on the terminal when the live table is redrawn or removed."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _show(self) -> None:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._table,
                console=self._console,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
            )
            self._live.start()

    def _hide(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _table(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for slot, status in self._board.statuses.items():
            table.add_row(slot, Text(status.detail, style=STYLES[status.phase]))
        for title, text in self._rows():
            table.add_row(title, Text(text))
        return table

    def _changed(self, slot: str, before: Status, now: Status) -> None:
        """Print a line for failures, restarts and changes of readiness; without a terminal, also for loading."""
        if now.phase is Phase.WAITING:
            self.line(f"{slot}: {now.error}", "red")
            self.line(f"{slot}: restarting in {now.wait:.1f} s")
        elif now.phase is Phase.FAILED:
            self.line(f"{slot}: {now.error}", "red")
            self.line(f"{slot}: a restart would not help; correct the error, then run `plimsoll up` again")
        elif now.phase is Phase.READY and before.phase is not Phase.READY:
            self.line(f"{slot}: ready after {now.took:.1f} s", "green")
        elif now.phase is Phase.UNREADY and before.phase is Phase.READY:
            self.line(f"{slot}: not ready", "yellow")
        elif now.phase is Phase.LOADING and not self._console.is_terminal:
            self._progress(slot, now)

    def _progress(self, slot: str, now: Status) -> None:
        said = (now.stage, int((now.fraction or 0) * 100) // PERCENT_STEP)
        if self._said.get(slot) != said:
            self._said[slot] = said
            self.line(f"{slot}: {now.detail}")
