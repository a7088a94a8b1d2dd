"""Conditions of a status, their transition times, and which changes become events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plimsoll_operator.status.reasons import CALM, Reason

READY, PROGRESSING, PLACED, LOADED, ROUTABLE = "Ready", "Progressing", "Placed", "Loaded", "Routable"
RECONCILING, STALLED = "Reconciling", "Stalled"
"""Conditions of the kstatus convention, which other tools read. They exist only while they are True."""
REPLICAS_IGNORED = "ReplicasIgnored"
"""A condition that exists only while it is True."""
OURS = frozenset({READY, PROGRESSING, PLACED, LOADED, ROUTABLE, RECONCILING, STALLED, REPLICAS_IGNORED})
"""The types that the operator writes; others belong to other managers."""
MESSAGE_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition without its transition time. `status` None is Unknown."""

    type: str
    status: bool | None
    reason: Reason
    message: str

    @property
    def word(self) -> str:
        """The status as text."""
        return "Unknown" if self.status is None else str(self.status)

    @property
    def is_warning(self) -> bool:
        """Whether it needs attention: it is Stalled, or False for a reason that time alone does not change."""
        if self.type == STALLED:
            return True
        settled = self.type == PROGRESSING and self.reason is Reason.SETTLED
        return self.status is False and self.reason not in CALM and not settled


def with_times(
    conditions: Sequence[Condition], before: Sequence[Mapping[str, Any]], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Return conditions for the API; the transition time changes only if the status does."""
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
    """Return the text, shortened to `limit` characters with … at the end."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def news(conditions: Sequence[Condition], before: Sequence[Mapping[str, Any]]) -> list[Condition]:
    """Return the conditions whose status or reason has changed since `before`, and that become events.

    Ready, Progressing and Reconciling repeat the other conditions: of these, only Ready that becomes True and
    Progressing that becomes settled are events. Unknown, and reasons in `CALM`, are none.
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
