"""Where a model is between two revisions: which pods of either there should be, and the plan to get there.

Pods of either revision are planned for like those of any model, by the same function, each with its part of the
replicas and of what `spec.rollout` allows. Pods of neither are older ones of the stable revision's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from plimsoll_operator.build.pod_revision import Fits, user_part
from plimsoll_operator.canary.sizes import (
    canary_pods,
    kept_pods,
    room_for_canary,
    stable_pods,
    stable_rollout,
)
from plimsoll_operator.canary.state import Canary, State
from plimsoll_operator.planning.plan import ROOM_PATIENCE, Action, CreatePod, DeletePod, Plan, free_groups, plan
from plimsoll_operator.planning.pod_view import PodView, view
from plimsoll_operator.planning.pods import Observed, Pod, ServiceState
from plimsoll_operator.spec.canary import CanarySpec
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.status.reasons import Reason


@dataclass(frozen=True, slots=True)
class Sides:
    """Both revisions of a model: its present spec, that of its stable pods, and how pods compare with either."""

    present: Spec
    stable: Spec
    fits_present: Fits
    fits_stable: Fits


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """What to do now, in this order, and of which spec the pods are that are made; `wait` as in a plan."""

    parts: tuple[tuple[Spec, tuple[Action, ...]], ...]
    wait: timedelta | None

    @property
    def actions(self) -> tuple[Action, ...]:
        """All of them."""
        return tuple(action for _, actions in self.parts for action in actions)


@dataclass(frozen=True, slots=True)
class CanarySplit:
    """The pods of a model with a canary, each of them on one side.

    `wanted` pods the canary is to have in this step; `kept` of those that serve stay, because too few others do.
    """

    canary: Canary
    sides: Sides
    observed: Observed
    stable_view: PodView[Spec]
    canary_view: PodView[Spec]
    stable_plan: Plan
    wanted: int
    kept: int

    @property
    def replicas(self) -> int:
        """What is wanted in all."""
        return self.sides.present.replicas

    @property
    def is_present(self) -> bool:
        """Whether it is the present spec that is tried, and not one that is left."""
        return user_part(self.sides.present) == self.canary.revision

    @property
    def ready(self) -> int:
        """Pods of the canary that serve."""
        return self.canary_view.good_ready

    def merged(self) -> PodView[Spec]:
        """All of them as one, for the status: nothing that is where it should be is old."""
        one, other = self.stable_view, self.canary_view
        return PodView(
            replace(self.sides.present, replicas=one.spec.replicas + other.spec.replicas),
            self.observed,
            live=one.live + other.live,
            current=one.current + other.current,
            held=one.held + other.held,
            older=one.older + other.older,
            ended=one.ended + other.ended,
            needs_turn=False,
        )


def split_of(canary: Canary, terms: CanarySpec, sides: Sides, observed: Observed) -> CanarySplit:
    """Sort the pods, and say how many of either revision there should be."""
    spec = sides.present
    replicas, rollout = spec.replicas, spec.rollout
    ours = [pod for pod in observed.pods if pod.revision == canary.revision]
    others = [pod for pod in observed.pods if pod.revision != canary.revision]
    over = canary.state is State.TAKEN_BACK
    wanted = 0 if over else canary_pods(terms.steps[canary.step - 1].weight, replicas, rollout)
    first = view(spec, sides.fits_present, _only(ours, observed), may_roll=False)
    live = [pod for pod in ours if pod.live]
    kept = kept_pods(replicas, rollout, sum(p.ready for p in live), sum(p.ready for p in others if p.live), over=over)
    stays = max(min(len(live), wanted), kept)
    ready = min(first.good_ready, wanted)
    count = stable_pods(replicas, rollout, wanted, ready, blocked=_is_blocked(first.good, observed.now))
    count = max(min(1, replicas), min(count, replicas + rollout.surge(replicas) - stays))
    allowed = stable_rollout(replicas, rollout, count, stays, max(ready, kept))
    stable = view(
        replace(sides.stable, replicas=count, rollout=allowed),
        sides.fits_stable,
        replace(observed, pods=tuple(others)),
        may_roll=False,
    )
    planned = plan(stable)
    room = room_for_canary(replicas, rollout, max(count, _left(stable, planned)))
    mine = replace(first, spec=replace(spec, replicas=max(min(wanted, max(len(live), room)), kept)))
    return CanarySplit(canary, sides, observed, stable, mine, planned, wanted, kept)


def plan_split(split: CanarySplit) -> SplitPlan:
    """What to do now. Pods of the canary that are too many go first, and its new ones come last.

    Those of a canary that was taken back go at once, but for the last that serve.
    """
    first, wait = split.stable_plan, None
    if split.canary.state is State.TAKEN_BACK:
        mine: tuple[Action, ...] = _removed(split)
    else:
        planned = plan(split.canary_view)
        mine, wait = planned.actions, planned.wait
    groups, present, stable = free_groups(split.observed.pods), split.sides.present, split.sides.stable
    parts = (
        (present, [a for a in mine if not isinstance(a, CreatePod)]),
        (stable, first.actions),
        (present, [a for a in mine if isinstance(a, CreatePod)]),
    )
    waits = [t for t in (first.wait, wait) if t is not None]
    return SplitPlan(
        tuple((spec, tuple(_numbered(actions, groups))) for spec, actions in parts), min(waits, default=None)
    )


def _removed(split: CanarySplit) -> tuple[Action, ...]:
    pods = [p for p in split.observed.pods if p.revision == split.canary.revision and not p.stopping]
    kept = [p for p in pods if p.ready][: split.kept]
    return tuple(DeletePod(p.name, p.uid, "its revision was taken back") for p in pods if p not in kept)


def _left(seen: PodView[Spec], planned: Plan) -> int:
    """Pods that are there once the plan is carried out."""
    gone = {action.uid for action in planned.actions if isinstance(action, DeletePod)}
    made = sum(isinstance(action, CreatePod) for action in planned.actions)
    return sum(pod.uid not in gone for pod in seen.live) + made


def _only(pods: Iterable[Pod], observed: Observed) -> Observed:
    """The Service is the other side's to see to."""
    return replace(observed, pods=tuple(pods), service=ServiceState.OURS)


def _numbered(actions: Iterable[Action], groups: Iterator[str]) -> Iterator[Action]:
    """The two plans know nothing of each other's new pods."""
    return (replace(a, group=next(groups)) if isinstance(a, CreatePod) else a for a in actions)


def _is_blocked(pods: Iterable[Pod], now: datetime) -> bool:
    """Whether a pod of the canary has found no node for long."""
    return any(
        p.failure is not None and p.failure.reason is Reason.UNSCHEDULABLE and p.moved + ROOM_PATIENCE <= now
        for p in pods
    )
