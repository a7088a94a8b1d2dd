"""Draws a day as two curves, requests and replicas, in an SVG that adapts to light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from scheduling.picture import STYLE

LEFT, WIDTH, HEIGHT, GAP, TOP = 60, 700, 90, 40, 28
BAR, NAME = 20, 190


def draw(course: Sequence[tuple[float, int, int]], policies: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw `course`, which has (second, replicas, requests per minute), and below it the device-hours of each policy as
    bars.
    """
    parts = [_curve("requests a minute", [(at, count) for at, _, count in course], TOP, "bar")]
    second = TOP + HEIGHT + GAP
    parts.append(_curve("replicas, from zero", [(at, number) for at, number, _ in course], second, "best"))
    top = second + HEIGHT + GAP
    parts.append(
        f'<text class="title" x="8" y="{top - 8:g}">device-hours of a day, and the share within the target</text>'
    )
    longest = max(found["hours"] for found in policies.values())
    for row, (name, found) in enumerate(policies.items()):
        y, length = top + row * BAR, (WIDTH - NAME - 60) * found["hours"] / longest
        kind = "best" if name.startswith("plimsoll") else "bar"
        told = f"{found['hours']:.0f} h, {found['attained']:.1%}"
        parts += [
            f'<text class="small" x="{NAME - 8}" y="{y + 12:g}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{kind}" x="{NAME}" y="{y:g}" width="{length:.1f}" height="{BAR - 5}" rx="2"/>',
            f'<text class="small" x="{NAME + length + 6:.1f}" y="{y + 12:g}">{told}</text>',
        ]
    bottom, body = top + len(policies) * BAR + 8, "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 40} {bottom:g}" role="img" '
        f'aria-label="Requests and replicas over a day">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _curve(title: str, values: Sequence[tuple[float, int]], top: float, kind: str) -> str:
    end, most = max(at for at, _ in values), max(1, *(value for _, value in values))
    points = [(LEFT + WIDTH * at / end, top + HEIGHT * (1 - value / most)) for at, value in values]
    steps = "".join(f"H{x:.1f}V{y:.1f}" for x, y in points)
    hours = "".join(
        f'<text class="small" x="{LEFT + WIDTH * hour / 24:.0f}" y="{top + HEIGHT + 14:g}" '
        f'text-anchor="middle">{hour} h</text>'
        for hour in range(0, 25, 6)
    )
    return (
        f'<text class="title" x="8" y="{top - 10:g}">{escape(title)}</text>'
        f'<text class="small" x="{LEFT - 6}" y="{top + 10:g}" text-anchor="end">{most}</text>'
        f'<path class="{kind}" d="M{LEFT} {top + HEIGHT:g}{steps}V{top + HEIGHT:g}Z"/>{hours}'
    )
