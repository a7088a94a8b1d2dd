"""The served names that an object claims and does not have, and what its conditions say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_operator.status.reasons import Reason


@dataclass(frozen=True, slots=True)
class Loss:
    """A name that an object claims and does not have, and in a few words why."""

    name: str
    reason: Reason
    why: str


ADVICE = {
    Reason.SERVED_NAME_TAKEN: ("taken", "choose others in spec.model.servedNames"),
    Reason.SERVED_NAME_RESERVED: (
        "reserved",
        "choose others in spec.model.servedNames, or have the chart's servedNames.rules allow them here",
    ),
    Reason.SERVED_NAME_KEPT: (
        "kept for the namespaces that served them",
        "wait, choose others in spec.model.servedNames, or have the chart's servedNames.rules allow them here",
    ),
}
"""By reason, what is the matter with names, and what to do."""


def describe_losses(losses: Sequence[Loss]) -> tuple[Reason, str]:
    """The reason of the first loss, and a message about all of them."""
    parts = []
    for reason in dict.fromkeys(loss.reason for loss in losses):
        what, advice = ADVICE[reason]
        listed = ", ".join(f"{loss.name} {loss.why}" for loss in losses if loss.reason is reason)
        parts.append(f"names are {what}: {listed}; {advice}")
    return losses[0].reason, ". ".join(parts)
