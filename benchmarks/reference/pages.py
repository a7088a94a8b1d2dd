"""`python -m reference.pages docs/reference`: write the tables of metrics.md and exit-codes.md."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from reference.exit_codes import rows
from reference.metrics import COMPONENTS, metrics_of

MARK = "<!-- What follows is generated: make reference -->\n"


def renewed(name: str, page: str) -> str:
    """The text of a page with its tables replaced. Raises ValueError if the page has no mark."""
    prose, mark, _ = page.partition(MARK)
    if not mark:
        raise ValueError(f"{name} has no mark where its tables begin")
    return prose + MARK + "\n".join(PAGES[name]()) + "\n"


def main(folder: Path) -> None:
    """Write all pages of the folder."""
    for name in PAGES:
        page = folder / name
        page.write_text(renewed(name, page.read_text(encoding="utf-8")), encoding="utf-8")


def _metrics() -> Iterator[str]:
    for component in COMPONENTS:
        yield from ("", f"## {component}", "")
        metrics = metrics_of(component)
        cells = (
            (f"`{one.name}`", one.kind, one.unit or "-", ", ".join(f"`{n}`" for n in one.labels) or "-", one.text)
            for one in metrics
        )
        yield from _table(("metric", "type", "unit", "labels", "help text"), cells)


def _exit_codes() -> Iterator[str]:
    yield ""
    yield from _table(("code", "word", "meaning", "reason in conditions", "may pass by itself"), rows())


def _table(heading: Sequence[str], cells: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heading) + " |"
    yield "|" + "---|" * len(heading)
    for row in cells:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


PAGES = {"metrics.md": _metrics, "exit-codes.md": _exit_codes}
"""Functions that yield the lines of a page below its mark, by the page's name."""

if __name__ == "__main__":
    main(Path(sys.argv[1]))
