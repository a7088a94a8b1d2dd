"""Decides which pods of a pool may be deleted, and which must drain their models first: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from plimsoll_operator.planning.actions import Action, CreatePod, DeletePod
from plimsoll_operator.planning.pods import Pod


@dataclass(frozen=True, slots=True)
class Drained:
    """`actions` are those of the plan that are not deferred; `draining` are the uids of pods that are deleted once they
    have no models.

    `wait`: time until the first of them is deleted in any case; None if none drains.
    """

    actions: tuple[Action, ...]
    draining: frozenset[str]
    wait: timedelta | None


def drain(
    actions: Sequence[Action],
    pods: Iterable[Pod],
    models: Mapping[str, int],
    since: Mapping[str, datetime],
    patience: timedelta,
    now: datetime,
) -> Drained:
    """Defer deletions of ready pods while they have models, for up to `patience` since they began to drain.

    `models` has the number of models of each pod, by uid. An unready pod is deleted immediately, because no request can
    reach its models.
    """
    serving = {pod.uid: pod for pod in pods if pod.ready}
    kept: list[Action] = []
    draining: dict[str, datetime] = {}
    for action in actions:
        if isinstance(action, DeletePod) and action.uid in serving and models.get(action.uid, 0):
            end = since.get(action.uid, now) + patience
            if end > now:
                draining[action.uid] = end
                continue
        kept.append(action)
    wait = min((end - now for end in draining.values()), default=None)
    return Drained(_without_surplus(kept, len(draining)), frozenset(draining), wait)


def _without_surplus(actions: Sequence[Action], held: int) -> tuple[Action, ...]:
    """Return the actions without the first `held` creations: the new pods would replace pods whose deletion is
    deferred.
    """
    left: list[Action] = []
    for action in actions:
        if isinstance(action, CreatePod) and held:
            held -= 1
        else:
            left.append(action)
    return tuple(left)
