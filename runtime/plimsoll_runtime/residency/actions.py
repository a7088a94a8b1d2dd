"""What a plan may say. Each action has its reason, for people."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.names import ModelName
from plimsoll_runtime.residency.states import Level


@dataclass(frozen=True, slots=True)
class Wake:
    """Grant it memory, which is free, and bring it there, from its image or from disk."""

    name: ModelName
    grant: Grant
    why: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """Let its requests end, hold new ones, then take its memory back. `value` is what it was worth."""

    name: ModelName
    level: Level
    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Resume:
    """It drains for nobody any more: go on."""

    name: ModelName
    why: str


@dataclass(frozen=True, slots=True)
class DropImage:
    """Give up the image of a model that sleeps; its files stay."""

    name: ModelName
    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Shrink or grow its KV cache to so many bytes. What it grows by is free."""

    name: ModelName
    kv: int
    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """It cannot be had: tell those who wait for it. `code` is that of `errors.Refused`, or of DoesNotFit."""

    name: ModelName
    code: str
    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """It is wanted and not to be had yet; `until` is when that may change by time alone."""

    name: ModelName
    why: str
    until: float = math.inf


Action = Wake | Sleep | Resume | DropImage | Resize | Refuse | Wait


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in this order, and the time at which to look again though nothing has happened."""

    actions: tuple[Action, ...]
    look_at: float = math.inf
