"""Whether a change still gets on: when it last did, and until when it is to do so again.

Nothing is remembered for it. Pods carry the times at which they came nearer to serving, and the Progressing condition
the time at which the change began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from plimsoll_operator.conditions import PROGRESSING
from plimsoll_operator.observe import LONG_AGO, Pod
from plimsoll_operator.reasons import Reason
from plimsoll_operator.workload import Workload


def deadline(spec: Workload, pods: Sequence[Pod], before: Sequence[Mapping[str, Any]], now: datetime) -> datetime:
    """When the change counts as stalled, unless something moves; `pods` are those that have to do with it.

    A pod that loads, or drains, is progress until its own limit has passed.
    """
    moved = [
        *_begun(spec.generation, before, now),
        *(p.ended if p.dead else p.moved for p in pods),
        *(p.gone_by for p in pods if p.gone_by is not None),
    ]
    patience, startup = timedelta(seconds=spec.rollout.progress_seconds), timedelta(seconds=spec.startup_seconds)
    loaded_by = [p.loads_since + startup for p in pods if p.loads_since is not None]
    return max((max(moved, default=LONG_AGO) + patience, *loaded_by))


def _begun(generation: int, before: Sequence[Mapping[str, Any]], now: datetime) -> list[datetime]:
    """When the change began, as the last status says; nothing where that one says that it is stalled."""
    known = next((c for c in before if c["type"] == PROGRESSING), None)
    if known is None:
        return [now]
    if known["status"] == "True":
        return [datetime.fromisoformat(known["lastTransitionTime"])]
    stalled = known["reason"] == Reason.PROGRESS_DEADLINE_EXCEEDED
    return [] if stalled and known.get("observedGeneration") == generation else [now]
