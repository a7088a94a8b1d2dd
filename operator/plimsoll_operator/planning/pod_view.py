"""The pods of one object, sorted by state: the input of plans and statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from plimsoll_operator.build.pod_revision import Fit, Fits
from plimsoll_operator.planning.pods import LONG_AGO, Observed, Pod
from plimsoll_operator.spec.workload import Workload
from plimsoll_operator.status.conditions import PROGRESSING
from plimsoll_operator.status.pod_failure import Failure
from plimsoll_operator.status.reasons import Reason


def deadline(spec: Workload, pods: Sequence[Pod], before: Sequence[Mapping[str, Any]], now: datetime) -> datetime:
    """Return when the ongoing change of the pods (scaling, rollout, replacement) counts as stalled unless a pod makes
    progress until then; `pods` are those that take part in it. `before`: the last status's conditions.

    A pod that loads or drains makes progress until its own limit has passed.
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
    """Return when the ongoing change began, as a list of one time: `now` if the last status reports none. Empty if that
    status reports the change to this spec as stalled.
    """
    known = next((c for c in before if c["type"] == PROGRESSING), None)
    if known is None:
        return [now]
    if known["status"] == "True":
        return [datetime.fromisoformat(known["lastTransitionTime"])]
    stalled = known["reason"] == Reason.PROGRESS_DEADLINE_EXCEEDED
    return [] if stalled and known.get("observedGeneration") == generation else [now]


CORDON = "node.kubernetes.io/unschedulable"
W_co = TypeVar("W_co", bound=Workload, covariant=True)
W = TypeVar("W", bound=Workload)


@dataclass(frozen=True, slots=True)
class PodView(Generic[W_co]):
    """The pods of an object. `live` pods count as replicas. Each of them is either `current`, `held` or `older`:

    `current`: of the present spec and image. `held`: of the present spec but an older Plimsoll, and the upgrade queue
    has not admitted this object yet. `older`: to be replaced. The `ended` pods are not live: they were current and will
    not run again. `needs_turn`: whether a ready pod is outdated only by an upgrade of Plimsoll, so that the object
    needs a place in the upgrade queue.
    """

    spec: W_co
    observed: Observed
    live: tuple[Pod, ...]
    current: tuple[Pod, ...]
    held: tuple[Pod, ...]
    older: tuple[Pod, ...]
    ended: tuple[Pod, ...]
    needs_turn: bool

    @property
    def good(self) -> tuple[Pod, ...]:
        """Live pods that need no replacement for their spec, on any node."""
        return self.current + self.held

    @property
    def leaving(self) -> tuple[Pod, ...]:
        """Good pods on a node that is being drained."""
        return tuple(p for p in self.good if p.leaving) if moves_off_nodes(self.spec) else ()

    @property
    def staying(self) -> tuple[Pod, ...]:
        """Good pods that stay on their node."""
        return tuple(p for p in self.good if not p.leaving) if moves_off_nodes(self.spec) else self.good

    @property
    def ready(self) -> int:
        """The number of ready pods of any spec."""
        return sum(p.ready for p in self.live)

    @property
    def good_ready(self) -> int:
        """The number of ready good pods."""
        return sum(p.ready for p in self.good)

    @property
    def stopping(self) -> int:
        """The number of deleted pods that have not ended yet, without those on nodes that do not report."""
        return sum(p.stopping and not p.lost for p in self.observed.pods)

    def deadline(self, before: Sequence[Mapping[str, Any]]) -> datetime:
        """Return when the ongoing change counts as stalled; `before` are the last status's conditions."""
        stopping = tuple(p for p in self.observed.pods if p.stopping)
        return deadline(self.spec, (*self.current, *self.ended, *stopping), before, self.observed.now)

    def stalls_in(self, before: Sequence[Mapping[str, Any]]) -> timedelta | None:
        """Return the time until the ongoing change counts as stalled; None after that. `before` are the last status's
        conditions.
        """
        left = self.deadline(before) - self.observed.now
        return left if left > timedelta(0) else None

    def failure(self, reasons: frozenset[Reason]) -> Failure | None:
        """Return the first failure with one of these reasons: of a good pod that is not ready or, while pods are
        missing, of the pod that ended last. None without one.
        """
        missing = len(self.good) < self.spec.replicas
        for pod in (*self.good, *(self.ended[-1:] if missing else ())):
            if not pod.ready and pod.failure is not None and pod.failure.reason in reasons:
                return Failure(pod.failure.reason, f"{pod.name}: {pod.failure.message}")
        return None


def view(spec: W, fits: Fits, observed: Observed, *, may_roll: bool = True) -> PodView[W]:
    """Sort the pods by their hashes and states. Without `may_roll`, pods that only an upgrade of Plimsoll has outdated
    are `held`, not `older`.
    """
    of = {p.uid: fits(p.hash) for p in observed.pods}
    live = tuple(p for p in observed.pods if p.live)
    outdated = tuple(p for p in live if of[p.uid] is Fit.OUTDATED)
    others = tuple(p for p in live if of[p.uid] is Fit.OLDER)
    ended = [p for p in observed.pods if p.dead and not p.stopping and of[p.uid] is Fit.CURRENT]
    return PodView(
        spec,
        observed,
        live=live,
        current=tuple(p for p in live if of[p.uid] is Fit.CURRENT),
        held=() if may_roll else outdated,
        older=others + outdated if may_roll else others,
        ended=tuple(sorted(ended, key=lambda p: (p.ended, p.name))),
        needs_turn=any(p.ready for p in outdated),
    )


def moves_off_nodes(spec: Workload) -> bool:
    """Return whether pods are moved off a cordoned node: not if they tolerate the cordon and could be scheduled there
    again.
    """
    return not any(_tolerates_cordon(toleration) for toleration in spec.template.tolerations)


def _tolerates_cordon(toleration: Mapping[str, Any]) -> bool:
    return toleration.get("key") in (None, "", CORDON) and toleration.get("effect") in (None, "", "NoSchedule")
