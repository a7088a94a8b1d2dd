"""The units of one object, sorted by state: the input of plans and statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from plimsoll_operator.build.pod_revision import Fit, Fits
from plimsoll_operator.planning.pods import LONG_AGO, Observed
from plimsoll_operator.planning.units import Unit, units_of
from plimsoll_operator.spec.workload import Workload
from plimsoll_operator.status.conditions import PROGRESSING
from plimsoll_operator.status.pod_failure import Failure
from plimsoll_operator.status.reasons import Reason


def deadline(spec: Workload, units: Sequence[Unit], before: Sequence[Mapping[str, Any]], now: datetime) -> datetime:
    """Return when the ongoing change of the units (scaling, rollout, replacement) counts as stalled unless one makes
    progress until then; `units` are those that take part in it. `before`: the last status's conditions.

    A unit that loads or drains makes progress until its own limit has passed.
    """
    moved = [
        *_begun(spec.generation, before, now),
        *(u.ended if u.dead else u.moved for u in units),
        *(u.gone_by for u in units if u.gone_by is not None),
    ]
    patience, startup = timedelta(seconds=spec.rollout.progress_seconds), timedelta(seconds=spec.startup_seconds)
    loaded_by = [u.loads_since + startup for u in units if u.loads_since is not None]
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
    """The `units` of an object. The `live` ones count as replicas. Each of them is either `current`, `held` or `older`:

    `current`: of the present spec and image. `held`: whole, of the present spec but an older Plimsoll, and the upgrade
    queue has not admitted this object yet. `older`: to be replaced. The `ended` units are not live: they were current
    and will not run again. `needs_turn`: whether a ready unit is outdated only by an upgrade of Plimsoll, so that the
    object needs a place in the upgrade queue.
    """

    spec: W_co
    observed: Observed
    units: tuple[Unit, ...]
    live: tuple[Unit, ...]
    current: tuple[Unit, ...]
    held: tuple[Unit, ...]
    older: tuple[Unit, ...]
    ended: tuple[Unit, ...]
    needs_turn: bool

    @property
    def good(self) -> tuple[Unit, ...]:
        """Live units that need no replacement for their spec, on any node."""
        return self.current + self.held

    @property
    def leaving(self) -> tuple[Unit, ...]:
        """Good units with a pod on a node that is being drained."""
        return tuple(u for u in self.good if u.leaving) if moves_off_nodes(self.spec) else ()

    @property
    def staying(self) -> tuple[Unit, ...]:
        """Good units that stay on their nodes."""
        return tuple(u for u in self.good if not u.leaving) if moves_off_nodes(self.spec) else self.good

    @property
    def ready(self) -> int:
        """The number of ready units of any spec."""
        return sum(u.ready for u in self.live)

    @property
    def good_ready(self) -> int:
        """The number of ready good units."""
        return sum(u.ready for u in self.good)

    @property
    def stopping(self) -> int:
        """The number of deleted units that have not ended yet, without those on nodes that do not report."""
        return sum(u.stopping and not u.lost for u in self.units)

    @property
    def placed(self) -> bool:
        """Whether all wanted units have the present spec, and nodes to stay on."""
        return not self.older and not self.leaving and sum(u.scheduled for u in self.good) >= self.spec.replicas

    def deadline(self, before: Sequence[Mapping[str, Any]]) -> datetime:
        """Return when the ongoing change counts as stalled; `before` are the last status's conditions."""
        stopping = tuple(u for u in self.units if u.stopping)
        return deadline(self.spec, (*self.current, *self.ended, *stopping), before, self.observed.now)

    def stalls_in(self, before: Sequence[Mapping[str, Any]]) -> timedelta | None:
        """Return the time until the ongoing change counts as stalled; None after that. `before` are the last status's
        conditions.
        """
        left = self.deadline(before) - self.observed.now
        return left if left > timedelta(0) else None

    def failure(self, reasons: frozenset[Reason]) -> Failure | None:
        """Return the first failure with one of these reasons: of a pod that is not ready in a good unit or, while units
        are missing, in the one that ended last. None without one.
        """
        missing = len(self.good) < self.spec.replicas
        units = (*self.good, *(self.ended[-1:] if missing else ()))
        for pod in (pod for unit in units for pod in unit.pods):
            if not pod.ready and pod.failure is not None and pod.failure.reason in reasons:
                return Failure(pod.failure.reason, f"{pod.name}: {pod.failure.message}")
        return None


def view(spec: W, fits: Fits, observed: Observed, *, may_roll: bool = True) -> PodView[W]:
    """Sort the units by their hashes and states. Without `may_roll`, units that only an upgrade of Plimsoll has
    outdated are `held`, not `older`.
    """
    units = units_of(observed.pods)
    # Someone may have changed the label with the size.
    of = {u.uid: fits(u.hash) if u.size == spec.pods_per_replica else Fit.OLDER for u in units}
    live = tuple(u for u in units if u.live)
    outdated = tuple(u for u in live if of[u.uid] is Fit.OUTDATED)
    others = tuple(u for u in live if of[u.uid] is Fit.OLDER)
    # A unit of another image that lacks a pod cannot be completed.
    rolling = tuple(u for u in outdated if may_roll or not u.whole)
    ended = [u for u in units if u.dead and not u.stopping and of[u.uid] is Fit.CURRENT]
    return PodView(
        spec,
        observed,
        units=units,
        live=live,
        current=tuple(u for u in live if of[u.uid] is Fit.CURRENT),
        held=tuple(u for u in outdated if u not in rolling),
        older=others + rolling,
        ended=tuple(sorted(ended, key=lambda u: (u.ended, u.name))),
        needs_turn=any(u.ready for u in outdated),
    )


def moves_off_nodes(spec: Workload) -> bool:
    """Return whether pods are moved off a cordoned node: not if they tolerate the cordon and could be scheduled there
    again.
    """
    return not any(_tolerates_cordon(toleration) for toleration in spec.template.tolerations)


def _tolerates_cordon(toleration: Mapping[str, Any]) -> bool:
    return toleration.get("key") in (None, "", CORDON) and toleration.get("effect") in (None, "", "NoSchedule")
