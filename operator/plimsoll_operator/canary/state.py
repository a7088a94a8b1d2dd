"""The state of a canary (`status.canary`): gateways read it, and a new leader continues from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from plimsoll_cluster.decode_errors import UNREADABLE


class State(StrEnum):
    """The state of a canary: its step's pods are starting, its step is observed, or it was rolled back."""

    STARTING = "Starting"
    OBSERVING = "Observing"
    TAKEN_BACK = "TakenBack"


@dataclass(frozen=True, slots=True)
class Canary:
    """`weight` per cent of requests go to `revision`, the others to the pods of `stable`.

    `step` counts from 1 to `steps`. `since`: start of the state. `terms`: fingerprint of the terms that it is judged
    by. `message`: what it waits for, or why it was rolled back. `lacking`: since when fewer of its pods are ready than
    wanted; None if none is missing.
    """

    revision: str
    stable: str
    step: int
    steps: int
    weight: int
    state: State
    since: datetime
    terms: str
    message: str
    lacking: datetime | None = None

    @property
    def progress(self) -> str:
        """The text of the column Canary of `kubectl get`."""
        if self.state is State.TAKEN_BACK:
            return "taken back"
        return f"{self.weight}% ({self.step}/{self.steps})"


def canary_fields(canary: Canary) -> dict[str, Any]:
    """Return the canary as the fields of `status.canary`."""
    fields = {
        "revision": canary.revision,
        "stableRevision": canary.stable,
        "step": canary.step,
        "steps": canary.steps,
        "weight": canary.weight,
        "state": canary.state.value,
        "since": _stamp(canary.since),
        "terms": canary.terms,
        "progress": canary.progress,
        "message": canary.message,
    }
    return fields | ({"lackingSince": _stamp(canary.lacking)} if canary.lacking is not None else {})


def read_canary(status: Mapping[str, Any]) -> Canary | None:
    """Read the canary from a status that the operator wrote; None if it has none."""
    found = status.get("canary")
    if found is None:
        return None
    return Canary(
        revision=found["revision"],
        stable=found["stableRevision"],
        step=found["step"],
        steps=found["steps"],
        weight=found["weight"],
        state=State(found["state"]),
        since=datetime.fromisoformat(found["since"]),
        terms=found["terms"],
        message=found.get("message", ""),
        lacking=datetime.fromisoformat(found["lackingSince"]) if "lackingSince" in found else None,
    )


def _stamp(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Mark:
    """The annotation of a revision that was rolled back, so that this is known even if the status is lost."""

    terms: str
    stable: str
    message: str

    def text(self) -> str:
        """Return the annotation's value."""
        return msgspec.json.encode(self).decode()


def mark_of(canary: Canary) -> Mark:
    """Return the mark of a canary that was rolled back."""
    return Mark(canary.terms, canary.stable, canary.message)


def read_mark(text: str) -> Mark | None:
    """Read a mark; None if the text is empty or not one of ours."""
    try:
        return msgspec.json.decode(text, type=Mark)
    except UNREADABLE:
        return None
