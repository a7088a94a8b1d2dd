"""Results as tables, with the same rows for terminals and documents."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from goals import Status
from serving.systems import SYSTEMS

NOT_APPLICABLE = "-"
WIDTH = 150
PAST_ROOFLINE = (
    "* Above 100 %: the roofline uses the rate of stock oneDNN's product, which other kernels may exceed; or something "
    "disturbed the measurement of the limits."
)


def console() -> Console:
    """Return a console with the terminal's width; for files and pipes, wide enough for the tables."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table without formatting: headings (the first `texts` columns have text, the others figures) and rows
    of cells.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    texts: int = 1

    def rich(self) -> Table:
        """Return the table for a terminal."""
        table = Table(title=self.title, caption=self.note or None)
        for index, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if index < self.texts else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """Return the table for a document."""
        rule = ["---" if index < self.texts else "---:" for index in range(len(self.headings))]
        lines = [self.headings, rule, *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join(part for part in (f"{self.title}.", table, self.note) if part)


def serving(rows: Sequence[Mapping[str, Any]]) -> Sheet:
    """Return the output tokens per second of each system; for a peer, in brackets, Plimsoll's speed over the peer's."""
    peers = list(dict.fromkeys(name for row in rows for name in (*row["ratios"], *row["absent"])))
    headings = ["workload", "Plimsoll", *(SYSTEMS[name].title for name in peers), "of roofline", "TTFT p50 / p99 ms"]
    cells = [
        [
            f"{row['name']}: {row['title']}",
            f"{row['tokens_per_second'][row['us']]:.0f}",
            *(_peer(row, name) for name in peers),
            _share(row["of_roofline"]),
            _first_token(row),
        ]
        for row in rows
    ]
    note = PAST_ROOFLINE if any(row["of_roofline"] > 1 for row in rows) else ""
    title = "Output tokens per second (in brackets: how many times the peer's ours are), medians"
    return Sheet(title, headings, cells, note)


def _peer(row: Mapping[str, Any], name: str) -> str:
    if name in row["ratios"]:
        return f"{row['tokens_per_second'][name]:.0f} ({row['ratios'][name]:.2f}x)"
    return str(row["absent"].get(name, NOT_APPLICABLE))


def _share(value: float) -> str:
    return f"{value:.0%}" + (" *" if value > 1 else "")


def _first_token(row: Mapping[str, Any]) -> str:
    last = row["rounds"][-1]["systems"][row["us"]]
    return f"{last['ttft_ms']['p50']:.0f} / {last['ttft_ms']['p99']:.0f}" if "ttft_ms" in last else NOT_APPLICABLE


def limits(rows: Sequence[Mapping[str, Any]]) -> Sheet:
    """Return a row for each workload: minimum, median and maximum over its rounds of memory bandwidth, matrix rate, and
    the cores that other programs used.
    """
    names = {
        "bandwidth_gb_s": "memory, GB/s",
        "gemm_gflop_s": "bfloat16 product, GFLOP/s",
        "cores_used_by_others": "others, cores",
    }
    cells = [[row["name"], *(_range([r[name] for r in row["rounds"]]) for name in names)] for row in rows]
    return Sheet("The machine during the rounds: minimum, median, maximum", ["workload", *names.values()], cells)


def goals(records: Sequence[Mapping[str, Any]]) -> Sheet:
    """Return the recorded goals, one per row."""
    cells = [[r["work"], r["goal"], r["figure"], r["status"]] for r in records]
    return Sheet(f"Goals: {_counts(records)}", ["work", "goal", "measured", "status"], cells, texts=2)


def goals_by_kind(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> Sheet:
    """Return a row for each goal and a column for each kind of processor, with measurement and status."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for kind, of_kind in records.items():
        for r in of_kind:
            rows.setdefault((r["work"], r["goal"]), {})[kind] = f"{r['figure']} {r['status']}"
    order = [work for work, _ in rows]
    cells = [
        [*goal, *(found.get(kind, NOT_APPLICABLE) for kind in records)]
        for goal, found in sorted(rows.items(), key=lambda row: order.index(row[0][0]))
    ]
    counts = "; ".join(f"{kind}: {_counts(of_kind)}" for kind, of_kind in records.items())
    return Sheet(f"Goals ({counts})", ["work", "goal", *records], cells, texts=2)


def _counts(records: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{sum(r['status'] == status for r in records)} {status}" for status in Status)


def _range(values: Sequence[float]) -> str:
    return " / ".join(f"{v:g}" for v in (min(values), statistics.median(values), max(values)))
