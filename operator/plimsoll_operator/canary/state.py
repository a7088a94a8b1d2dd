"""How far a canary has come: `status.canary`, which gateways go by and a new process goes on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from plimsoll_cluster.decode_errors import UNREADABLE


class State(StrEnum):
    """What is waited for."""

    STARTING = "Starting"
    OBSERVING = "Observing"
    TAKEN_BACK = "TakenBack"


@dataclass(frozen=True, slots=True)
class Canary:
    """`weight` per cent of requests go to `revision`, the others to the pods of `stable`.

    `step` counts from 1; `steps` of them there are. `since`: when the state began. `terms`: the fingerprint of those it
    is judged by. `message` says in words what is waited for, or why it was taken back. `lacking`: since when fewer
    of its pods are ready than are wanted; None while all are, or none is wanted.
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
        """For tables."""
        if self.state is State.TAKEN_BACK:
            return "taken back"
        return f"{self.weight}% ({self.step}/{self.steps})"


def canary_fields(canary: Canary) -> dict[str, Any]:
    """As it is written."""
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
    """From a status that we wrote; None for none."""
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
    """What a revision that was taken back carries, so that it is known wherever the status may be."""

    terms: str
    stable: str
    message: str

    def text(self) -> str:
        """As an annotation's value."""
        known = {"terms": self.terms, "stable": self.stable, "message": self.message}
        return json.dumps(known, sort_keys=True)


def mark_of(canary: Canary) -> Mark:
    """Of one that was taken back."""
    return Mark(canary.terms, canary.stable, canary.message)


def read_mark(text: str) -> Mark | None:
    """None where there is none, or where somebody else wrote it."""
    try:
        found = json.loads(text)
        return Mark(str(found["terms"]), str(found["stable"]), str(found["message"]))
    except (*UNREADABLE, KeyError, TypeError):
        return None
