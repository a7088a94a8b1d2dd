"""Which pods of a pool may go now, and which have to give their models away first: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from plimsoll_operator.planning.plan import Action, CreatePod, DeletePod
from plimsoll_operator.planning.pods import Pod


@dataclass(frozen=True, slots=True)
class Drained:
    """`actions` are what is left of a plan; `draining` are the uids of pods that go once they have no models.

    `wait` is until when the first of them goes, whatever it has.
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
    """Hold deletions of ready pods back while they have models, for as long as `patience` since they began to drain.

    `models` has the number of models of each pod, by uid. A pod that does not serve goes at once: nobody can be sent
    to what it has.
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
    """Pods that were to be made in the room of those that are held back are not made yet."""
    left: list[Action] = []
    for action in actions:
        if isinstance(action, CreatePod) and held:
            held -= 1
        else:
            left.append(action)
    return tuple(left)
