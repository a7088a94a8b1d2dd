"""The result of a reconcile, and when to reconcile again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.kube.expectations import PATIENCE_SECONDS
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.status.conditions import PLACED, ROUTABLE
from plimsoll_operator.status.status import Rejections

logger = logging.getLogger(__name__)

PATIENCE = timedelta(seconds=PATIENCE_SECONDS)
"""How long passes wait for the stores to show what was written."""
SOON = timedelta(seconds=1)
"""When it is asked whose a Service is that was in the way of ours."""
A_MOMENT = timedelta(seconds=5)
"""How long a pool that a model names may be unknown before the model's status says so: one file may apply both."""
LOOK_AGAIN = timedelta(seconds=60)
"""How often we look at what nothing tells us of: somebody else's Service in the way, a namespace that ends."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """Whether the object is gone, and when it needs another pass though nothing tells us.

    `put_off`: there was none, because the stores have not seen yet what the last one wrote.
    """

    gone: bool = False
    again: timedelta | None = None
    put_off: bool = False


async def unless_namespace_ends(key: ObjectKey, closer: Awaitable[ReconcileResult]) -> ReconcileResult:
    """What `closer` came to. In a namespace that is being deleted nothing can be made, which is no failure."""
    try:
        return await closer
    except ApiError as error:
        if not error.namespace_ends:
            raise
        logger.info("%s: its namespace is being deleted, and it will be with it", key)
        return ReconcileResult(again=LOOK_AGAIN)


FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=2), timedelta(seconds=300)


def retry_in(rejections: Rejections, before: Sequence[Mapping[str, Any]], now: datetime) -> timedelta | None:
    """How long until the next try; None if nothing was refused. `before` are the conditions of the last status."""
    refused = [kind for kind, words in ((PLACED, rejections.pod), (ROUTABLE, rejections.service)) if words is not None]
    since = {c["type"]: datetime.fromisoformat(c["lastTransitionTime"]) for c in before if c["status"] == "False"}
    waits = (now - since.get(kind, now) for kind in refused)
    return min((min(LONGEST_WAIT, max(FIRST_WAIT, wait)) for wait in waits), default=None)
