"""How many pods of either revision there are during a canary, within what `spec.rollout` allows: pure arithmetic.

`replicas` pods serve, and `maxSurge` more may be there. A canary of weight w has w per cent of them, rounded up, and
leaves one to the stable revision at the least. A stable pod goes when a pod of the canary is ready in its place; it
goes first, as far as `maxUnavailable` lets it, only where there is no room for both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll_operator.spec.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Exact(Rollout):
    """What is left to one of two revisions: just this many, and perhaps none."""

    def unavailable(self, replicas: int) -> int:
        """Pods that may be missing."""
        assert isinstance(self.max_unavailable, int)
        return min(replicas, self.max_unavailable)


def canary_pods(weight: int, replicas: int, rollout: Rollout) -> int:
    """Pods that a canary of this weight has; 0 where there is no place for one beside a stable one."""
    if not replicas:
        return 0
    most = replicas + rollout.surge(replicas) - 1
    return min(most, max(1, math.ceil(weight * replicas / 100)))


def stable_pods(replicas: int, rollout: Rollout, wanted: int, ready: int, *, blocked: bool) -> int:
    """Stable pods while `ready` of the `wanted` pods of the canary serve.

    `blocked`: some of those find no place, or may not be there beyond `replicas`.
    """
    if not replicas:
        return 0
    ahead = rollout.unavailable(replicas) if blocked or not rollout.surge(replicas) else 0
    return max(1, replicas - min(wanted, ready + ahead))


def kept_pods(replicas: int, rollout: Rollout, ready: int, others: int, *, over: bool) -> int:
    """How many of its `ready` pods a canary keeps in any case, because only `others` serve beside them.

    So many must serve as `maxUnavailable` leaves; beside one that was taken back, which gets requests only where there
    is nobody else, it is enough that anybody does.
    """
    if not replicas:
        return 0
    most = min(ready, replicas + rollout.surge(replicas) - 1)
    if over:
        return 0 if others else most
    return max(0, min(most, replicas - rollout.unavailable(replicas) - others))


def stable_rollout(replicas: int, rollout: Rollout, stable: int, live: int, ready: int) -> Exact:
    """How stable pods may be replaced meanwhile; `live` pods of the canary are there, and `ready` of them serve."""
    surge = max(0, replicas + rollout.surge(replicas) - stable - live)
    missing = max(0, stable - replicas + rollout.unavailable(replicas) + ready)
    return Exact(surge, missing, rollout.progress_seconds)


def room_for_canary(replicas: int, rollout: Rollout, others: int) -> int:
    """Pods that the canary may have beside `others`."""
    return max(0, replicas + rollout.surge(replicas) - others)
