"""Whether a model's present revision has loaded, and what is still loading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.planning.units import Unit
from plimsoll_operator.status.conditions import LOADED, PLACED
from plimsoll_operator.status.pod_failure import Failure
from plimsoll_operator.status.reasons import NOT_LOADED, NOT_PLACED, Reason

FAILURES = NOT_PLACED | NOT_LOADED | {Reason.REJECTED}


@dataclass(frozen=True, slots=True)
class Loading:
    """The loading state of a revision. Times are seconds since the epoch.

    `loaded`: a replica of the revision has been ready. `failed`: the model was scaled to zero before one was. `until`:
    when the startup deadline of the last loading replica ends, 0 if none loads. `served`: when the first replica since
    the last start from zero became ready, 0 if none has.
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
    """Read the failure of `status.scaling`; None if it has none."""
    found = scaling.get("failure")
    return None if found is None else LoadFailure(found["revision"], Failure(Reason(found["reason"]), found["message"]))


def failure_of_status(conditions: Iterable[Mapping[str, Any]], startup: float) -> Failure:
    """Return the failure in the last status of a model that has not loaded within `startup` seconds."""
    known = {condition["type"]: condition for condition in conditions}
    for kind in (PLACED, LOADED):
        found = known.get(kind)
        if found is not None and found["status"] == "False" and found["reason"] in FAILURES:
            return Failure(Reason(found["reason"]), found["message"])
    return Failure(Reason.PROGRESS_DEADLINE_EXCEEDED, f"no replica has loaded the model within {startup:.0f} s")


def loads_until(live: Sequence[Unit], since: float, startup: float) -> float:
    """Return when the startup deadline of the last loading replica ends, 0 if none loads.

    A replica without a node, or one that crashes, counts as loading: scheduler and kubelet try again. If there are no
    pods because none can be created, the deadline counts from `since`, when replicas were last wanted.
    """
    loading = [max(unit.created, unit.moved).timestamp() for unit in live if not unit.ready and not unit.cut_off]
    began = loading if live else [since]
    return max(began, default=-startup) + startup


def served_since(live: Iterable[Unit], revision: str) -> float | None:
    """Return when the first ready replica of the revision became ready; None if none is ready."""
    return min((unit.moved.timestamp() for unit in live if unit.ready and unit.revision == revision), default=None)
