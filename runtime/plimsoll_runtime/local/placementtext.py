"""Where a model is and why, in a line; from the report of a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll_runtime.local.words import duration_text, size_text

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
    """State, for how long, why, memory and requests. `now`: seconds since the epoch."""
    parts = [f"{_word(model)} for {duration_text(now - model['since'])}"]
    if model["why"]:
        parts.append(model["why"])
    held = model["weights"] + model["workspace"] + model["kv"]
    if held or model["hostBytes"]:
        parts.append(f"{size_text(held)} on the device, {size_text(model['hostBytes'])} asleep")
    if model["active"] or model["waiting"]:
        parts.append(f"{model['active']} requests in flight, {model['waiting']} waiting")
    if model["error"]:
        parts.append(f"error: {model['error']}")
    return "; ".join(parts)


def short_placement_line(model: Mapping[str, Any], now: float) -> str:
    """State, for how long, and why, for a column of a table."""
    return f"{_word(model)} {duration_text(now - model['since'])}{_why(model)}"


def state_words(model: Mapping[str, Any]) -> str:
    """State and why."""
    return f"{_word(model)}{_why(model)}"


def short_memory_line(report: Mapping[str, Any]) -> str:
    """The memory taken against the line, and that of sleepers."""
    device, sleepers = report["device"], report["sleepers"]
    taken = f"{size_text(device['used'])} of {size_text(device['line'])} taken"
    return f"{taken}, {size_text(sleepers['used'])} of {size_text(sleepers['capacity'])} asleep"


def _word(model: Mapping[str, Any]) -> str:
    return WORDS.get(model["state"], str(model["state"]))


def _why(model: Mapping[str, Any]) -> str:
    why = model["error"] or model["why"]
    return f": {why}" if why and why != _word(model) else ""


def memory_line(report: Mapping[str, Any]) -> str:
    """The device's memory against its line."""
    device, sleepers = report["device"], report["sleepers"]
    taken = f"{size_text(device['used'])} of the line of {size_text(device['line'])} taken"
    asleep = f"{size_text(sleepers['used'])} of {size_text(sleepers['capacity'])} for sleepers"
    own = size_text(device["reserved"])
    return f"{device['name']}: {taken} ({own} by the runtime itself), {asleep}, pressure {device['pressure']}"


def findings_lines(findings: Sequence[str]) -> list[str]:
    """What there is to say of a device, a line each."""
    return [f"device: {text}" for text in findings]
