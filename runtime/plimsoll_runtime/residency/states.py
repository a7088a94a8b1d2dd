"""Where a model is on its way between disk and device, and which ways there are."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The value is what a report says. Asleep is IN_HOST (an image, no process) or ON_DISK (files only)."""

    ABSENT = "Absent"
    FETCHING = "Fetching"
    ON_DISK = "OnDisk"
    WAKING = "Waking"
    RESIDENT = "Resident"
    DRAINING = "Draining"
    IN_HOST = "InHost"


class Level(StrEnum):
    """How far a model is to be brought, or put to sleep."""

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
    # An engine that dies takes its model straight from Resident to where its weights still are.
    State.RESIDENT: frozenset({State.DRAINING, State.IN_HOST, State.ON_DISK}),
    # Who was to make room, and need not after all, goes on.
    State.DRAINING: frozenset({State.RESIDENT, State.IN_HOST, State.ON_DISK}),
    State.IN_HOST: frozenset({State.WAKING, State.ON_DISK}),
}


class TransitionError(RuntimeError):
    """A state was to follow another that it cannot follow: a fault of the host's own."""


def check_transition(before: State, after: State) -> None:
    """Raises TransitionError unless a model may go from one state to the other."""
    if after not in _NEXT[before]:
        raise TransitionError(f"a model that is {before} cannot become {after}")
