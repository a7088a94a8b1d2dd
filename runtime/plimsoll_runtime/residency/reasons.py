"""Decisions in words."""

from __future__ import annotations

import math

from plimsoll_runtime.residency.sizes import size_text
from plimsoll_runtime.residency.view import ModelView

_MINUTE, _HOUR = 60, 3600


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(0.84), duration(45), duration(745), duration(7200)
    ('0.8 s', '45 s', '12 min', '2.0 h')
    """
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


def idle(model: ModelView, now: float) -> str:
    """How long nobody has used it."""
    return "never used" if model.last_used == -math.inf else f"{duration(now - model.last_used)} idle"


def evicted(victim: ModelView, wanted: ModelView, now: float, clock: float) -> str:
    """It is worth less than what needs its room."""
    return (
        f"evicted {victim.name} for {wanted.name}: value {victim.value:.4g} against {wanted.value_at(clock):.4g}, "
        f"{idle(victim, now)}, reload {duration(victim.reload_seconds)}"
    )


def turned(victim: ModelView, wanted: ModelView, now: float) -> str:
    """It has had its turn."""
    return (
        f"evicted {victim.name}: it is {wanted.name}'s turn, which waits for {duration(now - (wanted.asked or now))}; "
        f"awake for {duration(now - victim.since)}, reload {duration(victim.reload_seconds)}"
    )


def woken(model: ModelView, now: float) -> str:
    """Somebody asked for it."""
    if model.waiting == 0:
        return "woken: it is pinned" if model.pinned else "woken by an operation"
    count = "a request" if model.waiting == 1 else f"{model.waiting} requests"
    since = now - (model.asked or now)
    return f"woken for {count}" + (f" after {duration(since)}" if since >= 1 else "")


def never_fits(model: ModelView, line: int, reserved: int, pinned: int) -> str:
    """Whatever is evicted."""
    sizes = model.sizes
    kept = f" and {size_text(pinned)} pinned models" if pinned else ""
    return (
        f"{model.name} needs {size_text(sizes.least)} (weights {size_text(sizes.weights)}, workspace "
        f"{size_text(sizes.workspace)}, KV cache {size_text(sizes.kv_minimum)}), but of the line of "
        f"{size_text(line)} the runtime itself takes {size_text(reserved)}{kept}; give the pod more memory, or the "
        "model a smaller minimumKv, maxModelLen or maxBatchTokens"
    )
