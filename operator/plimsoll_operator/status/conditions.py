"""Conditions of a status: what they say, when they last changed, and which changes people hear of as events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plimsoll_operator.status.reasons import CALM, Reason

READY, PROGRESSING, PLACED, LOADED, ROUTABLE = "Ready", "Progressing", "Placed", "Loaded", "Routable"
RECONCILING, STALLED = "Reconciling", "Stalled"
"""What tools that know nothing of us look for (kstatus); they are there only while they hold."""
REPLICAS_IGNORED = "ReplicasIgnored"
"""It exists only while it is True, too."""
OURS = frozenset({READY, PROGRESSING, PLACED, LOADED, ROUTABLE, RECONCILING, STALLED, REPLICAS_IGNORED})
"""Other types are other managers'."""
MESSAGE_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, before it has a time. `status` None is Unknown."""

    type: str
    status: bool | None
    reason: Reason
    message: str

    @property
    def word(self) -> str:
        """The status as it is written."""
        return "Unknown" if self.status is None else str(self.status)

    @property
    def is_warning(self) -> bool:
        """Whether a person should look: something does not hold, and for more than lack of time."""
        if self.type == STALLED:
            return True
        settled = self.type == PROGRESSING and self.reason is Reason.SETTLED
        return self.status is False and self.reason not in CALM and not settled


def with_times(
    conditions: Sequence[Condition], before: Sequence[Mapping[str, Any]], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Conditions as they are written: the time changes only where the status does."""
    times = {c["type"]: (c["status"], c["lastTransitionTime"]) for c in before}
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    written = []
    for c in conditions:
        old_status, old_time = times.get(c.type, (None, stamp))
        written.append(
            {
                "type": c.type,
                "status": c.word,
                "observedGeneration": generation,
                "lastTransitionTime": old_time if old_status == c.word else stamp,
                "reason": c.reason.value,
                "message": cut(c.message, MESSAGE_LIMIT),
            }
        )
    return written


def cut(text: str, limit: int) -> str:
    """The text, or as much of it as `limit` characters hold, with … at the end."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def news(conditions: Sequence[Condition], before: Sequence[Mapping[str, Any]]) -> list[Condition]:
    """The changes of status or reason that are worth an event.

    Ready, Progressing and Reconciling repeat what the others say, but for their good ends. That something has not
    happened yet is no news.
    """
    known = {c["type"]: (c["status"], c["reason"]) for c in before}
    changed = [c for c in conditions if known.get(c.type) != (c.word, c.reason.value)]
    return [c for c in changed if _is_news(c)]


def _is_news(condition: Condition) -> bool:
    if condition.reason in CALM or condition.status is None or condition.type == RECONCILING:
        return False
    if condition.type == PROGRESSING:
        return condition.reason is Reason.SETTLED
    if condition.type == READY:
        return bool(condition.status)
    return True
