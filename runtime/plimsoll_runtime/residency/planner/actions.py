"""The actions of a plan, and the texts of their reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.planner.view import ModelView
from plimsoll_runtime.residency.sizes import size_text
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.states import Level


@dataclass(frozen=True, slots=True)
class Wake:
    """Grant free memory to a model, and start it from its image or from disk."""

    name: ModelName
    grant: Grant
    why: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """Drain a model's requests, hold new ones, then release its memory. `value` is its retention value."""

    name: ModelName
    level: Level
    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Stop draining: no other model needs the memory."""

    name: ModelName
    why: str


@dataclass(frozen=True, slots=True)
class DropImage:
    """Drop the image of a sleeping model; its files stay."""

    name: ModelName
    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize a KV cache to `kv` bytes. It grows only into free device memory."""

    name: ModelName
    kv: int
    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse waiting requests. `code` is one of `errors.Refused`, or that of DoesNotFit."""

    name: ModelName
    code: str
    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The model is wanted but cannot wake yet. `until`: the time from which it can without another event; inf: none."""

    name: ModelName
    why: str
    until: float = math.inf


Action = Wake | Sleep | Resume | DropImage | Resize | Refuse | Wait


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions to do now, in this order, and the time of the next plan if nothing else happens."""

    actions: tuple[Action, ...]
    look_at: float = math.inf


_MINUTE, _HOUR = 60, 3600


def duration(seconds: float) -> str:
    """Format seconds for people.

    >>> duration(0.84), duration(45), duration(745), duration(7200)
    ('0.8 s', '45 s', '12 min', '2.0 h')
    """
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


def idle(model: ModelView, now: float) -> str:
    """Format how long the model has not been used."""
    return "never used" if model.last_used == -math.inf else f"{duration(now - model.last_used)} idle"


def evicted(victim: ModelView, wanted: ModelView, now: float, clock: float) -> str:
    """Return the reason to evict a model that is worth less than the one that needs its memory."""
    return (
        f"evicted {victim.name} for {wanted.name}: value {victim.value:.4g} against {wanted.value_at(clock):.4g}, "
        f"{idle(victim, now)}, reload {duration(victim.reload_seconds)}"
    )


def turned(victim: ModelView, wanted: ModelView, now: float) -> str:
    """Return the reason to evict a model after its service slice."""
    return (
        f"evicted {victim.name}: its service slice is over, and {wanted.name} has waited to wake for "
        f"{duration(now - (wanted.asked or now))}; awake for {duration(now - victim.since)}, reload "
        f"{duration(victim.reload_seconds)}"
    )


def woken(model: ModelView, now: float) -> str:
    """Return the reason of a wake."""
    if model.waiting == 0:
        return "woken: it is pinned" if model.pinned else "woken by an operation"
    count = "a request" if model.waiting == 1 else f"{model.waiting} requests"
    since = now - (model.asked or now)
    return f"woken for {count}" + (f" after {duration(since)}" if since >= 1 else "")


def never_fits(model: ModelView, line: int, reserved: int, pinned: int) -> str:
    """Return the reason why a model cannot fit, whatever is evicted."""
    sizes = model.sizes
    kept = f" and {size_text(pinned)} pinned models" if pinned else ""
    return (
        f"{model.name} needs {size_text(sizes.least)} (weights {size_text(sizes.weights)}, workspace "
        f"{size_text(sizes.workspace)}, KV cache {size_text(sizes.kv_minimum)}), but of the "
        f"{size_text(line)} that may be granted (--line) the runtime itself takes {size_text(reserved)}{kept}; "
        "give the pod more memory, or the model a smaller minimumKv, maxModelLen or maxBatchTokens"
    )
