"""Draws the figures as bars, in an SVG that adapts to light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from scheduling.columns import COLUMNS, Column

LEFT, PANEL, GAP, TOP, HEAD, BAR, FOOT = 80, 172, 14, 34, 22, 18, 16
LABEL = 62
"""Space for a bar's figure, to its right."""

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f; }
.small { font-size: 11px; fill: #57606a; }
.title { font-size: 13px; font-weight: 600; }
.bar { fill: #8ba9c9; }
.best { fill: #1f6feb; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #8d96a0; } .bar { fill: #3d4f66; } .best { fill: #4493f8; }
}
"""


def draw(traces: Sequence[Mapping[str, Any]]) -> str:
    """Draw a row for each trace, a panel for each figure, a bar for each policy; the best of each panel is
    highlighted.
    """
    drawn = [column for column in COLUMNS if column.drawn]
    width = LEFT + len(drawn) * (PANEL + GAP)
    parts, top = [_headings(drawn)], float(TOP)
    for trace in traces:
        title = escape(f"{trace['name']}: {trace['title']}")
        parts.append(f'<text class="title" x="8" y="{top + 14:g}">{title}</text>')
        top += HEAD
        for number, column in enumerate(drawn):
            parts.append(_panel(column, trace["policies"], LEFT + number * (PANEL + GAP), top))
        parts += [
            f'<text class="small" x="{LEFT - 8}" y="{top + row * BAR + 12:g}" text-anchor="end">{escape(policy)}</text>'
            for row, policy in enumerate(trace["policies"])
        ]
        top += len(trace["policies"]) * BAR + FOOT
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top:g}" role="img" '
        f'aria-label="Scheduling policies compared">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _headings(drawn: Sequence[Column]) -> str:
    """Draw headings; arrows point to better values."""
    return "\n".join(
        f'<text class="small" x="{LEFT + number * (PANEL + GAP)}" y="16">{escape(column.heading)} '
        f"{'↓' if column.less else '↑'}</text>"
        for number, column in enumerate(drawn)
    )


def _panel(column: Column, policies: Mapping[str, Mapping[str, float]], left: float, top: float) -> str:
    values = [figures[column.key] for figures in policies.values()]
    best = min(values) if column.less else max(values)
    longest = max(values) or 1.0
    lines = []
    for row, value in enumerate(values):
        length = max(1.0, (PANEL - LABEL) * value / longest)
        kind = "best" if value == best else "bar"
        y = top + row * BAR
        lines.append(f'<rect class="{kind}" x="{left:g}" y="{y:g}" width="{length:.1f}" height="{BAR - 4}" rx="2"/>')
        lines.append(f'<text class="small" x="{left + length + 5:.1f}" y="{y + 11:g}">{column.text(value)}</text>')
    return "\n".join(lines)
