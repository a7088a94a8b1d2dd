"""Decides in each reconcile whether a model has a canary, and at which step it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from plimsoll_operator.build.controller_revision import Revision, spec_of_revision
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.pod_revision import Fit, fits, user_part
from plimsoll_operator.canary.evidence import Evidence, Totals
from plimsoll_operator.canary.rule import Facts, begin, counted, judge, taken_back, under, words_of
from plimsoll_operator.canary.split import CanarySplit, Sides, split_of
from plimsoll_operator.canary.state import Canary, State, canary_fields, read_canary, read_mark
from plimsoll_operator.planning.pods import Observed
from plimsoll_operator.planning.units import units_of
from plimsoll_operator.spec.canary import CanarySpec
from plimsoll_operator.spec.identity import Object, ObjectKey
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles
from plimsoll_operator.spec.template import SpecError

TotalsSource = Callable[[ObjectKey], Totals | None]
"""Returns the request counts of a model by gateway process and revision; None if no gateway reports."""
NEVER_MIND = "the spec is that of the stable revision again"
NO_ROOM = "1 replica without rollout.maxSurge leaves no pod for the canary: raise replicas or rollout.maxSurge"


@dataclass(frozen=True, slots=True)
class CanaryDecision:
    """`split` is None if all pods should have the present spec. `stable`: label of the revision to roll back
    to, "" for none.

    `wait`: time until the next decision; None if only a change can lead to another one.
    """

    split: CanarySplit | None
    stable: str
    wait: timedelta | None = None

    @property
    def canary(self) -> Canary | None:
        """The canary, if there is one."""
        return self.split.canary if self.split is not None else None

    def fields(self) -> dict[str, Any]:
        """Return the decision's status fields."""
        fields: dict[str, Any] = {"stableRevision": self.stable} if self.stable else {}
        return fields | ({"canary": canary_fields(self.canary)} if self.canary is not None else {})


class CanaryController:
    """Decides on the canaries of all models. Its only state is the request counts since each canary's state began.

    `check` raises SpecError for a spec that cannot be built in this installation.
    """

    def __init__(
        self,
        image: Image,
        check: Callable[[Spec], None],
        totals_of: TotalsSource = lambda key: None,
        profiles: Profiles = NO_PROFILES,
    ) -> None:
        self._image = image
        self._check = check
        self._totals_of = totals_of
        self._profiles = profiles
        self._evidence = Evidence()

    def forget(self, key: ObjectKey) -> None:
        """Discard the counts of a model that is deleted or has no dedicated pods."""
        self._evidence.forget(key)

    def decide(self, item: Object, spec: Spec, known: Sequence[Revision], observed: Observed) -> CanaryDecision:
        """Return the canary's next state and the split of the model's pods. `known`: the model's stored revisions."""
        status, present, terms = item.get("status") or {}, user_part(spec), spec.rollout.canary
        stable = str(status.get("stableRevision", ""))
        canary = None if terms is None else self._present(status, present, terms, stable, known, observed)
        sides = None if canary is None else self._sides(item, spec, canary.stable, known)
        if terms is None or canary is None or sides is None:
            self._evidence.forget(spec.key)
            return CanaryDecision(None, present if self._serves_alone(spec, observed) else stable)
        canary = under(terms, canary, observed.now)
        split = split_of(canary, terms, sides, observed)
        canary = counted(canary, split.wanted, split.ready, observed.now)
        verdict = judge(canary, terms, self._facts(spec, canary, split, observed.now))
        if verdict.canary is None:
            self._evidence.forget(spec.key)
            return CanaryDecision(None, present)
        return CanaryDecision(split_of(verdict.canary, terms, sides, observed), verdict.canary.stable, verdict.wait)

    def _present(
        self,
        status: Object,
        present: str,
        terms: CanarySpec,
        stable: str,
        known: Sequence[Revision],
        observed: Observed,
    ) -> Canary | None:
        """Return the canary that runs, starts or was rolled back; None if all pods should have the present spec.

        That is so if the present spec is the stable revision's, or if no stable revision is known. If a spec returns to
        the stable revision, the canary stays as rolled back until its pods are gone.
        """
        canary = read_canary(status)
        if canary is not None and canary.revision != present and canary.stable == present:
            there = any(pod.revision == canary.revision and not pod.stopping for pod in observed.pods)
            return taken_back(canary, NEVER_MIND, canary.since) if there else None
        if canary is not None and canary.revision == present:
            again = canary.state is State.TAKEN_BACK and (canary.terms != terms.fingerprint or _was_left(canary))
            return begin(present, canary.stable, terms, observed.now) if again else self._marked(canary, terms, known)
        if present == stable or not stable:
            return None
        return self._marked(begin(present, stable, terms, observed.now), terms, known)

    def _marked(self, canary: Canary, terms: CanarySpec, known: Sequence[Revision]) -> Canary:
        """Return the canary as rolled back if the newest stored revision is its own and was rolled back under the same
        terms; else unchanged.

        A spec that returns later is tried again: until its revision is stored with a new number, another one is the
        newest.
        """
        latest = max(known, key=lambda revision: revision.number, default=None)
        mark = read_mark(latest.mark) if latest is not None and latest.label == canary.revision else None
        if canary.state is State.TAKEN_BACK or mark is None or mark.terms != terms.fingerprint:
            return canary
        return replace(
            canary, stable=mark.stable, weight=0, state=State.TAKEN_BACK, terms=mark.terms, message=mark.message
        )

    def _sides(self, item: Object, spec: Spec, stable: str, known: Sequence[Revision]) -> Sides | None:
        """Return both revisions; None if no pod of the stable one can be built. The rollout is then one without a
        canary.
        """
        stored = next((revision for revision in known if revision.label == stable), None)
        found = None if stored is None else spec_of_revision(item, stored, self._profiles)
        if found is None:
            return None
        found = replace(found, replicas=spec.replicas)
        try:
            self._check(found)
        except SpecError:
            return None
        return Sides(spec, found, fits(spec, self._image), fits(found, self._image))

    def _serves_alone(self, spec: Spec, observed: Observed) -> bool:
        """Return whether at least `replicas` units run, and all of them are ready and of the present spec, so that a
        later canary can roll back to it.
        """
        fit, live = fits(spec, self._image), [unit for unit in units_of(observed.pods) if unit.live]
        return len(live) >= spec.replicas > 0 and all(unit.ready and fit(unit.hash) is not Fit.OLDER for unit in live)

    def _facts(self, spec: Spec, canary: Canary, split: CanarySplit, now: datetime) -> Facts:
        totals = self._totals_of(spec.key)
        seen = None if totals is None else self._evidence.since(spec.key, canary, totals)
        failure = next((u.failure for u in split.canary_view.live if u.failure is not None), None)
        hindrance = failure.message if failure is not None else ""
        if not split.wanted:
            hindrance = NO_ROOM if spec.replicas else "the model has 0 replicas"
        return Facts(
            wanted=split.wanted,
            ready=split.ready,
            deadline=_deadline(spec, canary, split),
            now=now,
            hindrance=hindrance,
            canary=None if seen is None else seen[0],
            stable=None if seen is None else seen[1],
        )


def _was_left(canary: Canary) -> bool:
    """Return whether the canary was rolled back because the spec changed, and not because it was worse."""
    return canary.message == words_of(NEVER_MIND)


def _deadline(spec: Spec, canary: Canary, split: CanarySplit) -> datetime:
    """Return when canary pods that are not ready count as failed: after `progress_seconds` without progress, but not
    before the startup deadline of each loading pod.
    """
    units = split.canary_view.units
    moved = max((canary.lacking or canary.since, *(u.ended if u.dead else u.moved for u in units)))
    loaded_by = [u.loads_since + timedelta(seconds=spec.startup_seconds) for u in units if u.loads_since is not None]
    return max((moved + timedelta(seconds=spec.rollout.progress_seconds), *loaded_by))
