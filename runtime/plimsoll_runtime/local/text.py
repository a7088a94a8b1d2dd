"""Texts for terminals: sizes, times, placements and tables."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

MARK = "..."
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def size_text(number: float) -> str:
    """Return a number of bytes in MiB or GiB.

    >>> size_text(7 * 2**20), size_text(3 * 2**29)
    ('7 MiB', '1.5 GiB')
    """
    return f"{number / 2**20:.0f} MiB" if number < 2**30 else f"{number / 2**30:.1f} GiB"


def gib_text(number: int) -> str:
    """Return a number of bytes in GiB, for sentences that compare several.

    >>> gib_text(2**29)
    '0.5 GiB'
    """
    return f"{number / 2**30:.1f} GiB"


def duration_text(seconds: float) -> str:
    """Return a duration in its largest useful unit, rounded down.

    >>> duration_text(0.4), duration_text(300), duration_text(7200), duration_text(200_000)
    ('0 s', '5 min', '2 h', '2 days')
    """
    whole = max(0, int(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole} s"
    if whole < 2 * _HOUR:
        return f"{whole // _MINUTE} min"
    return f"{whole // _HOUR} h" if whole < 2 * _DAY else f"{whole // _DAY} days"


def cut(text: str, width: int) -> str:
    """Return the text, cut and marked with "..." if it has more than `width` characters.

    >>> cut("gemma-3-270m", 8), cut("gemma", 8)
    ('gemma...', 'gemma')
    """
    return text if len(text) <= width else text[: width - len(MARK)] + MARK


WORDS = {
    "Absent": "not fetched yet",
    "Fetching": "being fetched",
    "OnDisk": "asleep on disk",
    "Waking": "waking",
    "Resident": "awake",
    "Draining": "going to sleep",
    "InHost": "asleep in memory",
}


def placement_line(model: Mapping[str, Any], now: float) -> str:
    """Return state, age of the state, reason, memory, requests and error of a model in a host's report. `now`: seconds
    since the epoch.
    """
    parts = [f"{_word(model)} for {duration_text(now - model['since'])}"]
    if model["why"]:
        parts.append(model["why"])
    held = model["weights"] + model["workspace"] + model["kv"]
    if held or model["hostBytes"]:
        image = size_text(model["hostBytes"])
        parts.append(f"{size_text(held)} of device memory, {image} of host memory for its image")
    if model["active"] or model["waiting"]:
        parts.append(f"{model['active']} requests in flight, {model['waiting']} waiting")
    if model["error"]:
        parts.append(f"error: {model['error']}")
    return "; ".join(parts)


def short_placement_line(model: Mapping[str, Any], now: float) -> str:
    """Return state, age of the state, and error or else reason, of a model in a host's report, for a table."""
    return f"{_word(model)} {duration_text(now - model['since'])}{_why(model)}"


def state_words(model: Mapping[str, Any]) -> str:
    """Return the state, and the error or else the reason, of a model in a host's report."""
    return f"{_word(model)}{_why(model)}"


def short_memory_line(report: Mapping[str, Any]) -> str:
    """Return, from a host's report, the device memory taken and its limit (the line), and the memory of sleeping models
    and its limit.
    """
    device, sleepers = report["device"], report["sleepers"]
    taken = f"{size_text(device['used'])} of {size_text(device['line'])} taken"
    return f"{taken}, {size_text(sleepers['used'])} of {size_text(sleepers['capacity'])} asleep"


def _word(model: Mapping[str, Any]) -> str:
    return WORDS.get(model["state"], str(model["state"]))


def _why(model: Mapping[str, Any]) -> str:
    why = model["error"] or model["why"]
    return f": {why}" if why and why != _word(model) else ""


def memory_line(report: Mapping[str, Any]) -> str:
    """Return, from a host's report, the granted device memory and its limit, the memory of sleeping models, and the
    memory pressure.
    """
    device, sleepers = report["device"], report["sleepers"]
    taken = f"{size_text(device['used'])} of {size_text(device['line'])} (--line) granted"
    asleep = f"{size_text(sleepers['used'])} of {size_text(sleepers['capacity'])} for sleepers"
    own, pressure = size_text(device["reserved"]), f"memory pressure {device['pressure']}"
    return f"{device['name']}: {taken} ({own} of it reserved for the runtime), {asleep}, {pressure}"


def findings_lines(findings: Sequence[str]) -> list[str]:
    """Return a line for each finding about a device."""
    return [f"device: {text}" for text in findings]


GAP = "  "
WIDTH = 80


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None, cut_column: int = 0) -> str:
    """Return rows aligned in columns. Lines longer than `width` characters are shortened by cutting their cell in
    `cut_column`.
    """
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    if width is not None:
        beyond = sum(widths) + len(GAP) * (len(head) - 1) - width
        widths[cut_column] -= max(0, min(beyond, widths[cut_column] - len(MARK) - 1))
    lines = [[cut(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True)] for row in (head, *rows)]
    return "\n".join(GAP.join(line).rstrip() for line in lines)


def line_width() -> int:
    """Return the characters of a line: the terminal's width, at least WIDTH."""
    return max(WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH
