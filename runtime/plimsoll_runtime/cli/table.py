"""Tables on a terminal: each column is as wide as its longest cell, but one is cut if lines would be too long."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from plimsoll_runtime.local.words import MARK, cut

GAP = "  "
WIDTH = 80


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None, cut_column: int = 0
) -> None:
    """Print it. Lines of more than `width` characters have the cells of `cut_column` cut; without `width` none is."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    if width is not None:
        beyond = sum(widths) + len(GAP) * (len(head) - 1) - width
        widths[cut_column] -= max(0, min(beyond, widths[cut_column] - len(MARK) - 1))
    for row in (head, *rows):
        cells = (cut(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True))
        print(GAP.join(cells).rstrip())


def line_width() -> int:
    """Characters of a line: WIDTH, or a terminal's own where that has more."""
    return max(WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH
