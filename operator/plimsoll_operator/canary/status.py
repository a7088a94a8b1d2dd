"""Conditions and events of a canary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from plimsoll_operator.canary.split import CanarySplit
from plimsoll_operator.canary.state import Canary, State
from plimsoll_operator.status.conditions import LOADED, PLACED, PROGRESSING, READY, ROUTABLE, Condition
from plimsoll_operator.status.groups import GroupStatus
from plimsoll_operator.status.reasons import Reason
from plimsoll_operator.status.status import Fields, Rejections, describe, ready_of, standard_of


def describe_split(
    split: CanarySplit,
    rejections: Rejections,
    before: Sequence[Mapping[str, Any]],
    groups: Sequence[GroupStatus] = (),
) -> tuple[Fields, list[Condition]]:
    """Return status fields and conditions of a model with two revisions, like `describe` for one."""
    merged = split.merged()
    fields, conditions = describe(merged, rejections, before, groups)
    of = {condition.type: condition for condition in conditions}
    loaded = of[LOADED]
    if loaded.reason in (Reason.LOADED, Reason.LOADING):
        loaded = replace(loaded, message=_loaded(split))
    parts = [of[PLACED], loaded, of[ROUTABLE]]
    ready = ready_of(replace(merged, spec=split.sides.present), parts) if split.replicas else of[READY]
    fields |= {
        "updatedReplicas": len(split.canary_view.current),
        "desiredReplicas": split.replicas,
        "source": split.sides.stable.source,
    }
    progressing = of[PROGRESSING]
    if split.is_present:
        over = split.canary.state is State.TAKEN_BACK
        progressing = _progressing(split.canary, over=over)
        if split.replicas:
            fields["phase"] = "Degraded" if over else "Updating"
    return fields, [ready, progressing, *parts, *standard_of(progressing)]


def _loaded(split: CanarySplit) -> str:
    """Return how many replicas of each revision have loaded their source; a revision without replicas is left out."""
    sides = [side for side in (split.stable_view, split.canary_view) if side.spec.replicas]
    said = [f"{side.good_ready} of {side.spec.replicas} replicas have loaded {side.spec.source}" for side in sides]
    return ", ".join(said)


def step_event(before: Canary | None, now: Canary | None, stable: str) -> tuple[Reason, str] | None:
    """Return reason and message of the event for the change of a canary from `before` to `now`; None if nothing changed
    or a condition reports it. `stable`: the stable revision after the change.
    """
    if now is None:
        if before is None or before.state is State.TAKEN_BACK or before.revision != stable:
            return None
        return Reason.PROMOTED, f"revision {stable} gets all requests"
    if now.state is State.TAKEN_BACK:
        return None
    if before is None or before.revision != now.revision:
        return Reason.CANARY, f"revision {now.revision} starts as a canary next to {now.stable}: {now.message}"
    if before.weight != now.weight:
        return Reason.CANARY, f"revision {now.revision} gets {now.weight}% of requests (step {now.step} of {now.steps})"
    return None


def _progressing(canary: Canary, *, over: bool) -> Condition:
    if over:
        return Condition(PROGRESSING, False, Reason.TAKEN_BACK, f"revision {canary.revision} was {canary.message}")
    return Condition(PROGRESSING, True, Reason.CANARY, f"revision {canary.revision}: {canary.message}")
