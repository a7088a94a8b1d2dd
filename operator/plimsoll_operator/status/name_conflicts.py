"""Served names that an object claims but does not own, and the text about them in its conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_operator.status.reasons import Reason


@dataclass(frozen=True, slots=True)
class NameConflict:
    """A name that an object claims but does not own, with a short reason."""

    name: str
    reason: Reason
    why: str


ADVICE = {
    Reason.SERVED_NAME_TAKEN: ("taken", "choose others in spec.model.servedNames"),
    Reason.SERVED_NAME_RESERVED: (
        "reserved",
        "choose others in spec.model.servedNames, or allow them here in the chart's servedNames.rules",
    ),
    Reason.SERVED_NAME_KEPT: (
        "kept for the namespaces that served them",
        "wait, choose others in spec.model.servedNames, or allow them here in the chart's servedNames.rules",
    ),
}
"""By reason: what is wrong with the names, and what to do."""


def describe_conflicts(conflicts: Sequence[NameConflict]) -> tuple[Reason, str]:
    """Return the reason of the first conflict, and a message about all of them."""
    parts = []
    for reason in dict.fromkeys(conflict.reason for conflict in conflicts):
        what, advice = ADVICE[reason]
        listed = ", ".join(f"{conflict.name} {conflict.why}" for conflict in conflicts if conflict.reason is reason)
        parts.append(f"names are {what}: {listed}; {advice}")
    return conflicts[0].reason, ". ".join(parts)
