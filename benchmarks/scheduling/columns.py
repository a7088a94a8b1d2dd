"""Columns of a run's figures, the same in the terminal, the document and the picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One figure. `text` formats it; `less`: whether lower values are better; `drawn`: whether it is in the picture
    too.
    """

    key: str
    heading: str
    text: Callable[[float], str]
    less: bool = True
    drawn: bool = False


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value < 1 else f"{value:.1f} s"


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:.0f} ms"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


COLUMNS = (
    Column("ttft_mean", "TTFT mean", _seconds, drawn=True),
    Column("ttft_p99", "TTFT p99", _seconds),
    Column("interactive_ttft_mean", "interactive mean", _seconds),
    Column("interactive_ttft_p99", "interactive p99", _seconds, drawn=True),
    Column("gap_mean", "ITL mean", _milliseconds),
    Column("gap_p99", "ITL p99", _milliseconds),
    Column("given_up", "given up", _percent, drawn=True),
    Column("goodput", "goodput", lambda value: f"{value:.2f}/s", less=False, drawn=True),
    Column("fairness", "Jain", lambda value: f"{value:.2f}", less=False, drawn=True),
    Column("hit_share", "prefix hits", _percent, less=False),
)


def cells(figures: Mapping[str, float]) -> list[str]:
    """Return a run's figures as text."""
    return [column.text(figures[column.key]) for column in COLUMNS]


def markdown(traces: Sequence[Mapping[str, object]]) -> str:
    """Return a table for each trace, for a document."""
    return "\n\n".join(map(_one, traces))


def _one(trace: Mapping[str, object]) -> str:
    policies = trace["policies"]
    assert isinstance(policies, Mapping)
    lines = [
        f"**{trace['name']}**: {trace['title']}.",
        "",
        "| policy | " + " | ".join(column.heading for column in COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]
    lines += [f"| {policy} | " + " | ".join(cells(figures)) + " |" for policy, figures in policies.items()]
    return "\n".join(lines)
