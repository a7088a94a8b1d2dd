"""Computes the numbers of pods of both revisions during a canary, within the limits of `spec.rollout`.

`replicas` pods serve, and up to `maxSurge` more may exist. A canary of weight w has w per cent of `replicas` pods,
rounded up, and leaves at least one pod to the stable revision. Usually a stable pod is deleted after the canary pod
that replaces it is ready. Only if both do not fit is it deleted before, within `maxUnavailable`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll_operator.spec.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Exact(Rollout):
    """The limits of one of two revisions as exact numbers of pods, which may be 0."""

    def unavailable(self, replicas: int) -> int:
        """Return the number of pods that may be missing."""
        assert isinstance(self.max_unavailable, int)
        return min(replicas, self.max_unavailable)


def canary_pods(weight: int, replicas: int, rollout: Rollout) -> int:
    """Return the number of pods of a canary of this weight; 0 if there cannot be one in addition to a stable pod."""
    if not replicas:
        return 0
    most = replicas + rollout.surge(replicas) - 1
    return min(most, max(1, math.ceil(weight * replicas / 100)))


def stable_pods(replicas: int, rollout: Rollout, wanted: int, ready: int, *, blocked: bool) -> int:
    """Return how many stable pods there should be while `ready` of the `wanted` canary pods serve.

    `blocked`: some canary pods find no node, or may not exist beyond `replicas`.
    """
    if not replicas:
        return 0
    ahead = rollout.unavailable(replicas) if blocked or not rollout.surge(replicas) else 0
    return max(1, replicas - min(wanted, ready + ahead))


def kept_pods(replicas: int, rollout: Rollout, ready: int, others: int, *, over: bool) -> int:
    """Return how many of its `ready` pods a canary keeps in any case, while only `others` pods of other revisions are
    ready.

    At least `replicas - maxUnavailable` pods must serve. A canary that was rolled back (`over`) gets requests only if
    no other pod is ready; it keeps its pods only if none is.
    """
    if not replicas:
        return 0
    most = min(ready, replicas + rollout.surge(replicas) - 1)
    if over:
        return 0 if others else most
    return max(0, min(most, replicas - rollout.unavailable(replicas) - others))


def side_rollout(replicas: int, rollout: Rollout, count: int, others: int, ready: int) -> Exact:
    """Return the limits for replacing the `count` pods of one revision, while `others` pods of the other revision exist
    and `ready` of them serve.
    """
    surge = room_beside(count + others, replicas, rollout)
    missing = max(0, count - replicas + rollout.unavailable(replicas) + ready)
    return Exact(surge, missing, rollout.progress_seconds, takes_over=rollout.takes_over)


def room_beside(pods: int, replicas: int, rollout: Rollout) -> int:
    """Return how many more pods may exist if there are `pods` of both revisions."""
    return max(0, replicas + rollout.surge(replicas) - pods)
