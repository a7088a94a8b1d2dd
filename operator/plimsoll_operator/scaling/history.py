"""The scaling history of a model, and the part of it that its status keeps for the next leader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from plimsoll_operator.scaling.load_line import LoadLine
from plimsoll_operator.scaling.stabilization import Extremes
from plimsoll_operator.status.load_progress import LoadFailure, read_load_failure

START_SECONDS = 60.0
"""Assumed start time of a replica before one is measured."""
NEWS = 0.25
"""The relative difference from the figure in the status above which it is written again."""
WHY_LIMIT, MESSAGE_LIMIT = 512, 1024
MOST_REQUESTS = 1e9
"""The most requests per replica that the CRD schema accepts."""


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """`status.scaling`: the wanted replicas (None if not decided yet), since when and why, and measured figures.

    `loaded`: the last revision of which a replica was ready, "" if unknown. `gave_up`: why the model has no replicas,
    if it was scaled to zero before it loaded.
    """

    desired: int | None = None
    since: float = 0.0
    why: str = ""
    trouble: str = ""
    start: float | None = None
    load_line: float | None = None
    loaded: str = ""
    gave_up: LoadFailure | None = None


def read_scaling_status(status: Mapping[str, Any]) -> ScalingStatus:
    """Read the scaling part of a ModelDeployment's status."""
    told = status.get("scaling") or {}
    since, load_line = told.get("since"), told.get("requestsPerReplica")
    return ScalingStatus(
        desired=status.get("desiredReplicas"),
        since=datetime.fromisoformat(since).timestamp() if since else 0.0,
        why=told.get("why", ""),
        trouble=told.get("trouble", ""),
        start=told.get("startSeconds"),
        load_line=None if load_line is None else float(load_line),
        loaded=told.get("loadedRevision", ""),
        gave_up=read_load_failure(told),
    )


def write_scaling_status(scaling_status: ScalingStatus) -> dict[str, Any]:
    """Return the fields of `status.scaling`."""
    found: dict[str, Any] = {}
    if scaling_status.since:
        found["since"] = datetime.fromtimestamp(scaling_status.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name, text in (("why", scaling_status.why), ("trouble", scaling_status.trouble)):
        if text:
            found[name] = text[:WHY_LIMIT]
    if scaling_status.start is not None:
        found["startSeconds"] = round(scaling_status.start)
    if scaling_status.load_line is not None:
        found["requestsPerReplica"] = f"{min(scaling_status.load_line, MOST_REQUESTS):.1f}"
    if scaling_status.loaded:
        found["loadedRevision"] = scaling_status.loaded
    if (gave_up := scaling_status.gave_up) is not None:
        words = gave_up.failure.message[:MESSAGE_LIMIT]
        found["failure"] = {"revision": gave_up.revision, "reason": gave_up.failure.reason.value, "message": words}
    return found


def measured(
    scaling_status: ScalingStatus, start: float | None, load_line: float | None, *, anew: bool
) -> ScalingStatus:
    """Return the status with these measured figures. Unless it is written `anew`, a figure is replaced only if it
    differs by more than `NEWS`.
    """
    kept_start = start if anew or _is_news(scaling_status.start, start) else scaling_status.start
    kept_line = load_line if anew or _is_news(scaling_status.load_line, load_line) else scaling_status.load_line
    return replace(scaling_status, start=kept_start, load_line=kept_line)


def _is_news(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return after is not None
    return abs(after - before) > NEWS * max(abs(before), 1.0)


@dataclass(slots=True)
class ScalingHistory:
    """The history of one model in one operator process. `began`: when the process first decided on it. `told`: when its
    trouble was last written into the status. `recommended`: recent results of `needed`. `start`: seconds that a replica
    takes to start, None if not measured.

    `served`: when the first replica of `revision` became ready, since the model last had no replicas; None if none has.
    """

    began: float
    told: float = 0.0
    load_line: LoadLine = field(default_factory=LoadLine)
    recommended: Extremes = field(default_factory=Extremes)
    start: float | None = None
    revision: str = ""
    served: float | None = None

    @property
    def ahead(self) -> float:
        """Seconds that a replica takes to start: measured, else `START_SECONDS`."""
        return START_SECONDS if self.start is None else self.start

    def serve(self, revision: str, since: float | None, now: float) -> None:
        """Record since when replicas of a revision have served; None if none serves now. The earliest time is kept."""
        if revision != self.revision:
            self.revision, self.served = revision, None
        if since is not None:
            self.served = min(since, now if self.served is None else self.served)

    def check_integrity(self) -> None:
        """Raise AssertionError if the history contradicts itself."""
        self.recommended.check_integrity()
        assert self.start is None or self.start >= 0
        assert self.load_line.carried == 0 or self.load_line.missed is not None


def remembered(scaling_status: ScalingStatus, now: float) -> ScalingHistory:
    """Return the history that follows from a model's status. Its load line counts as lowered by a missed target just
    now, so that it rises again only slowly.
    """
    load_line = LoadLine(scaling_status.load_line, now, 0.0) if scaling_status.load_line is not None else LoadLine()
    return ScalingHistory(began=now, told=now, load_line=load_line, start=scaling_status.start)
