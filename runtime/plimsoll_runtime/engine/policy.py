"""In which order requests are served."""

from __future__ import annotations

from typing import Protocol

from plimsoll_runtime.engine.sequence import SequenceState
from plimsoll_runtime.errors import UsageError


class Policy(Protocol):
    """Orders sequences by rank: the lowest is admitted first, the highest is preempted first.

    A rank is taken once, when the request arrives. Two sequences never share one, and what arrives later must in
    the long run rank later, or somebody starves.
    """

    def rank(self, sequence: SequenceState) -> tuple[float, ...]:
        """Where the sequence stands."""


class FirstComeFirstServed:
    """By arrival."""

    def rank(self, sequence: SequenceState) -> tuple[float, ...]:
        """The number of requests that came before."""
        return (sequence.arrival,)


POLICIES: dict[str, type[Policy]] = {"fcfs": FirstComeFirstServed}


def new_policy(name: str) -> Policy:
    """The policy of this name. Raises UsageError."""
    if name not in POLICIES:
        raise UsageError(f"unknown scheduling policy {name!r}; there are {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()
