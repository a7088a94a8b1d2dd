"""The states of a model between disk and device, and the allowed transitions."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The value is used in reports. Asleep is IN_HOST (an image, no process) or ON_DISK (files only)."""

    ABSENT = "Absent"
    FETCHING = "Fetching"
    ON_DISK = "OnDisk"
    WAKING = "Waking"
    RESIDENT = "Resident"
    DRAINING = "Draining"
    IN_HOST = "InHost"


class Level(StrEnum):
    """A sleep level, to which a model is brought or put to sleep."""

    RESIDENT = "Resident"
    IN_HOST = "InHost"
    ON_DISK = "OnDisk"


ASLEEP = frozenset({State.IN_HOST, State.ON_DISK})
HOLDS_DEVICE = frozenset({State.WAKING, State.RESIDENT, State.DRAINING})
"""States in which a model has a grant on the device."""

_NEXT: dict[State, frozenset[State]] = {
    State.ABSENT: frozenset({State.FETCHING}),
    State.FETCHING: frozenset({State.ON_DISK, State.ABSENT}),
    State.ON_DISK: frozenset({State.WAKING, State.ABSENT}),
    State.WAKING: frozenset({State.RESIDENT, State.IN_HOST, State.ON_DISK}),
    # An engine that dies takes its model straight from Resident to the level of its weights.
    State.RESIDENT: frozenset({State.DRAINING, State.IN_HOST, State.ON_DISK}),
    # A draining model resumes if its memory is not needed after all.
    State.DRAINING: frozenset({State.RESIDENT, State.IN_HOST, State.ON_DISK}),
    State.IN_HOST: frozenset({State.WAKING, State.ON_DISK}),
}


class TransitionError(RuntimeError):
    """An invalid state transition: a bug of the host."""


def check_transition(before: State, after: State) -> None:
    """Raise TransitionError unless a model may change from one state to the other."""
    if after not in _NEXT[before]:
        raise TransitionError(f"a model cannot change from {before} to {after}")
