"""How far the present revision of a model has come: whether a replica of it was ever ready, and what still loads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.planning.pods import Pod
from plimsoll_operator.status.conditions import LOADED, PLACED
from plimsoll_operator.status.pod_failure import Failure
from plimsoll_operator.status.reasons import NOT_LOADED, NOT_PLACED, Reason

FAILURES = NOT_PLACED | NOT_LOADED | {Reason.REJECTED}


@dataclass(frozen=True, slots=True)
class Loading:
    """Times are seconds since the epoch.

    `loaded`: a replica of the revision has been ready. `failed`: the model was scaled to zero before one was. `until`:
    when the startup deadline of the last replica that loads ends, 0 if none loads. `served`: when the first replica
    since the last start from zero became ready, 0 if none has.
    """

    loaded: bool = True
    failed: bool = False
    until: float = 0.0
    served: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Why a model was scaled to zero before a replica of this revision was ready: `status.scaling.failure`."""

    revision: str
    failure: Failure


def read_load_failure(scaling: Mapping[str, Any]) -> LoadFailure | None:
    """From `status.scaling`; None if it has no failure."""
    found = scaling.get("failure")
    return None if found is None else LoadFailure(found["revision"], Failure(Reason(found["reason"]), found["message"]))


def failure_of_status(conditions: Iterable[Mapping[str, Any]], startup: float) -> Failure:
    """What the last status says is wrong with a model that has not loaded within `startup` seconds."""
    known = {condition["type"]: condition for condition in conditions}
    for kind in (PLACED, LOADED):
        found = known.get(kind)
        if found is not None and found["status"] == "False" and found["reason"] in FAILURES:
            return Failure(Reason(found["reason"]), found["message"])
    return Failure(Reason.PROGRESS_DEADLINE_EXCEEDED, f"no replica has loaded the model within {startup:.0f} s")


def loads_until(live: Sequence[Pod], since: float, startup: float) -> float:
    """When the last replica that loads has had its time, 0 if none loads.

    A replica that has no node or crashes loads as well: its kubelet and the scheduler try again. While no pod is there,
    because none can be made, the time counts from `since`, when replicas were last wanted.
    """
    loading = [max(pod.created, pod.moved).timestamp() for pod in live if not pod.ready and not pod.cut_off]
    began = loading if live else [since]
    return max(began, default=-startup) + startup


def served_since(live: Iterable[Pod], revision: str) -> float | None:
    """When the first replica of the revision among these became ready; None if none is."""
    return min((pod.moved.timestamp() for pod in live if pod.ready and pod.revision == revision), default=None)
