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
"""How long a reconcile waits for the stores to show earlier writes."""
SOON = timedelta(seconds=1)
"""Delay of the reconcile that reads the owner of a Service which prevented the creation of ours."""
A_MOMENT = timedelta(seconds=5)
"""How long a model's pool may be missing before its status says so, because one file may contain both."""
LOOK_AGAIN = timedelta(seconds=60)
"""Interval of checks on objects that are not watched: a Service of another owner, a namespace that is being deleted."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """`gone`: the object does not exist. `again`: time until the next reconcile; None if only an event leads to one.

    `put_off`: nothing was done, because the stores do not show earlier writes yet.
    """

    gone: bool = False
    again: timedelta | None = None
    put_off: bool = False


async def unless_namespace_ends(key: ObjectKey, closer: Awaitable[ReconcileResult]) -> ReconcileResult:
    """Return the result of `closer`. If it fails because the namespace is being deleted, log that, and return a result
    that asks for another reconcile after `LOOK_AGAIN`.
    """
    try:
        return await closer
    except ApiError as error:
        if not error.namespace_ends:
            raise
        logger.info("%s: not reconciled, because its namespace is being deleted", key)
        return ReconcileResult(again=LOOK_AGAIN)


FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=2), timedelta(seconds=300)


def retry_in(rejections: Rejections, before: Sequence[Mapping[str, Any]], now: datetime) -> timedelta | None:
    """Return the time until the next try of a rejected write; None if nothing was rejected. It grows with the time
    since the first rejection. `before` are the conditions of the last status.
    """
    refused = [kind for kind, words in ((PLACED, rejections.pod), (ROUTABLE, rejections.service)) if words is not None]
    since = {c["type"]: datetime.fromisoformat(c["lastTransitionTime"]) for c in before if c["status"] == "False"}
    waits = (now - since.get(kind, now) for kind in refused)
    return min((min(LONGEST_WAIT, max(FIRST_WAIT, wait)) for wait in waits), default=None)
