"""Splits a model's pods between two revisions, and plans for both.

The same function plans the pods of each revision as of any model, with its part of the replicas and of the limits in
`spec.rollout`. Pods of any third revision count as old pods of the stable one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from plimsoll_operator.build.pod_revision import Fits, user_part
from plimsoll_operator.canary.sizes import (
    canary_pods,
    kept_pods,
    room_beside,
    side_rollout,
    stable_pods,
)
from plimsoll_operator.canary.state import Canary, State
from plimsoll_operator.planning.actions import Action, CreatePod, DeletePod, Plan, is_new_unit
from plimsoll_operator.planning.plan import ROOM_PATIENCE, free_groups, plan
from plimsoll_operator.planning.pod_view import PodView, view
from plimsoll_operator.planning.pods import Observed, Pod, ServiceState
from plimsoll_operator.planning.units import Unit, units_of
from plimsoll_operator.spec.canary import CanarySpec
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.status.reasons import Reason


@dataclass(frozen=True, slots=True)
class Sides:
    """Both revisions of a model: its present spec, the spec of its stable pods, and how pods compare with each."""

    present: Spec
    stable: Spec
    fits_present: Fits
    fits_stable: Fits


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Actions in order, grouped by the spec from which pods are created. The other fields are those of `Plan`."""

    parts: tuple[tuple[Spec, tuple[Action, ...]], ...]
    wait: timedelta | None
    waits_for_turn: bool = False
    given_back: str = ""

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions of all parts."""
        return tuple(action for _, actions in self.parts for action in actions)


@dataclass(frozen=True, slots=True)
class CanarySplit:
    """The pods of a model with a canary, each on one side.

    `wanted`: pods of the canary in this step. `kept`: ready canary pods that stay because too few others serve.
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
        """The wanted number of pods of both revisions together."""
        return self.sides.present.replicas

    @property
    def is_present(self) -> bool:
        """Whether the canary has the present spec. False if the spec is that of the stable revision again."""
        return user_part(self.sides.present) == self.canary.revision

    @property
    def ready(self) -> int:
        """The number of canary pods that serve."""
        return self.canary_view.good_ready

    def merged(self) -> PodView[Spec]:
        """Return the pods of both sides as one view for the status. Pods that fit the spec of their side do not
        count as old.
        """
        one, other = self.stable_view, self.canary_view
        return PodView(
            replace(self.sides.present, replicas=one.spec.replicas + other.spec.replicas),
            self.observed,
            units=one.units + other.units,
            live=one.live + other.live,
            current=one.current + other.current,
            held=one.held + other.held,
            older=one.older + other.older,
            ended=one.ended + other.ended,
            needs_turn=False,
        )


def split_of(canary: Canary, terms: CanarySpec, sides: Sides, observed: Observed) -> CanarySplit:
    """Sort the pods by revision and compute how many of each there should be."""
    spec = sides.present
    replicas, rollout = spec.replicas, spec.rollout
    ours = [pod for pod in observed.pods if pod.revision == canary.revision]
    others = [pod for pod in observed.pods if pod.revision != canary.revision]
    over = canary.state is State.TAKEN_BACK
    wanted = 0 if over else canary_pods(terms.steps[canary.step - 1].weight, replicas, rollout)
    first = view(spec, sides.fits_present, _only(ours, observed), may_roll=False)
    kept = kept_pods(replicas, rollout, first.ready, sum(u.ready for u in units_of(others)), over=over)
    stays = max(min(len(first.live), wanted), kept)
    ready = min(first.good_ready, wanted)
    count = stable_pods(replicas, rollout, wanted, ready, blocked=_is_blocked(first.good, observed))
    count = max(min(1, replicas), min(count, replicas + rollout.surge(replicas) - stays))
    allowed = side_rollout(replicas, rollout, count, stays, max(ready, kept))
    stable = view(
        replace(sides.stable, replicas=count, rollout=allowed),
        sides.fits_stable,
        replace(observed, pods=tuple(others)),
        may_roll=False,
    )
    planned = plan(stable)
    left = _left(stable, planned)
    created = sum(map(is_new_unit, planned.actions))
    there = max(count, len(left) + created)
    size = max(min(wanted, max(len(first.live), room_beside(there, replicas, rollout))), kept)
    limits = side_rollout(replicas, rollout, size, there, sum(unit.ready for unit in left))
    mine = replace(first, spec=replace(spec, replicas=size, rollout=limits))
    return CanarySplit(canary, sides, observed, stable, mine, planned, wanted, kept)


def plan_split(split: CanarySplit) -> SplitPlan:
    """Return the next actions. Surplus canary pods are deleted first, and new canary pods are created last.

    The pods of a canary that was rolled back are deleted immediately, except `kept` ready ones.
    """
    first = split.stable_plan
    second = Plan(_removed(split)) if split.canary.state is State.TAKEN_BACK else plan(split.canary_view)
    mine, waits_for_turn = second.actions, first.waits_for_turn or second.waits_for_turn
    if split.observed.turn.limited and first.makes_unit and second.makes_unit:
        # One group at a time: the canary's is created in a later turn.
        mine, waits_for_turn = tuple(a for a in mine if not is_new_unit(a)), True
    groups, present, stable = free_groups(split.observed.pods), split.sides.present, split.sides.stable
    parts = (
        (present, [a for a in mine if not isinstance(a, CreatePod)]),
        (stable, first.actions),
        (present, [a for a in mine if isinstance(a, CreatePod)]),
    )
    waits = [t for t in (first.wait, second.wait) if t is not None]
    return SplitPlan(
        tuple((spec, _numbered(actions, groups)) for spec, actions in parts),
        min(waits, default=None),
        waits_for_turn,
        first.given_back or second.given_back,
    )


def _removed(split: CanarySplit) -> tuple[Action, ...]:
    units = [u for u in split.canary_view.units if not u.stopping]
    kept = [u for u in units if u.ready][: split.kept]
    gone = [pod for unit in units if unit not in kept for pod in unit.pods]
    return tuple(DeletePod(p.name, p.uid, "its revision was rolled back") for p in gone)


def _left(seen: PodView[Spec], planned: Plan) -> list[Unit]:
    """Return the units that the plan does not delete."""
    gone = {action.uid for action in planned.actions if isinstance(action, DeletePod)}
    return [unit for unit in seen.live if unit.uid not in gone]


def _only(pods: Iterable[Pod], observed: Observed) -> Observed:
    """Return the observation with only these pods, and with the Service in order: the plan of the stable pods handles
    it.
    """
    return replace(observed, pods=tuple(pods), service=ServiceState.OURS)


def _numbered(actions: Sequence[Action], groups: Iterator[str]) -> tuple[Action, ...]:
    """Give new units distinct groups, because each plan chose groups without the other's new units."""
    new = {a.group: next(groups) for a in actions if isinstance(a, CreatePod) and is_new_unit(a)}
    return tuple(replace(a, group=new.get(a.group, a.group)) if isinstance(a, CreatePod) else a for a in actions)


def _is_blocked(units: Iterable[Unit], observed: Observed) -> bool:
    """Return whether a canary pod has found no node for `ROOM_PATIENCE`, or a group was given back for that reason."""
    return observed.turn.tries > 0 or any(
        u.failure is not None and u.failure.reason is Reason.UNSCHEDULABLE and u.moved + ROOM_PATIENCE <= observed.now
        for u in units
    )
