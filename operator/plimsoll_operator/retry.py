"""When to ask again for what the API server refuses, such as a pod beyond a quota: nothing tells of a quota's change.

The wait is as long as the refusal has lasted already, so it doubles with each try. It follows from the times of the
last status: nothing is remembered, and a try whose answer is the same writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from plimsoll_operator.conditions import PLACED, ROUTABLE
from plimsoll_operator.status import Rejections

FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=2), timedelta(seconds=300)


def retry_in(rejections: Rejections, before: Sequence[Mapping[str, Any]], now: datetime) -> timedelta | None:
    """How long until the next try; None if nothing was refused. `before` are the conditions of the last status."""
    refused = [kind for kind, words in ((PLACED, rejections.pod), (ROUTABLE, rejections.service)) if words is not None]
    since = {c["type"]: datetime.fromisoformat(c["lastTransitionTime"]) for c in before if c["status"] == "False"}
    waits = (now - since.get(kind, now) for kind in refused)
    return min((min(LONGEST_WAIT, max(FIRST_WAIT, wait)) for wait in waits), default=None)
