"""Draws seconds of loading as bars, in an SVG that adapts to light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from scheduling.picture import STYLE

LEFT, WIDTH, HEAD, BAR, FOOT, LABEL = 110, 620, 26, 20, 16, 170


def draw(traces: Sequence[dict[str, Any]]) -> str:
    """Draw a group for each trace, a bar for each policy, and the bound as a line."""
    parts, top = [], 8.0
    for trace in traces:
        policies = trace["policies"]
        longest = max(figures["seconds"] for figures in policies.values())
        scale = (WIDTH - LABEL) / longest
        parts.append(
            f'<text class="title" x="8" y="{top + 14:g}">{escape(trace["name"] + ": " + trace["title"])}</text>'
        )
        top += HEAD
        for row, (policy, figures) in enumerate(policies.items()):
            y, length = top + row * BAR, max(1.0, scale * figures["seconds"])
            kind = "best" if policy == "plimsoll" else "bar"
            label = f"{figures['seconds']:,.0f} s" + (
                "" if figures["served"] == 1 else f", {figures['served']:.0%} served"
            )
            parts.append(f'<text class="small" x="{LEFT - 8}" y="{y + 12:g}" text-anchor="end">{escape(policy)}</text>')
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y:g}" width="{length:.1f}" height="{BAR - 5}" rx="2"/>')
            parts.append(f'<text class="small" x="{LEFT + length + 6:.1f}" y="{y + 12:g}">{label}</text>')
        bottom = top + len(policies) * BAR
        x = LEFT + scale * trace["bound"]
        parts.append(f'<path d="M{x:.1f} {top - 4:g}V{bottom:g}" stroke="#cf222e" stroke-dasharray="3 2" fill="none"/>')
        parts.append(f'<text class="small" x="{x + 4:.1f}" y="{bottom + 8:g}">bound {trace["bound"]:,.0f} s</text>')
        top = bottom + FOOT
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH} {top:g}" role="img" '
        f'aria-label="Seconds of loading paid, by policy and trace">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )
