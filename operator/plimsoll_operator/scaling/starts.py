"""How long replicas take to start, from pods that were seen to become ready."""

from __future__ import annotations

from collections.abc import Iterable

from plimsoll_operator.observe import Pod

WEIGHT = 0.5
"""Of the last start in what is expected of the next."""


class Starts:
    """Of one model."""

    def __init__(self) -> None:
        self._starting: set[str] = set()

    def see(self, pods: Iterable[Pod], expected: float | None) -> float | None:
        """The seconds that are expected now. Pods of which nobody saw that they were not ready tell nothing."""
        live = [pod for pod in pods if pod.live]
        for pod in live:
            if pod.ready and pod.uid in self._starting:
                took = max(0.0, (pod.moved - pod.created).total_seconds())
                expected = took if expected is None else WEIGHT * took + (1 - WEIGHT) * expected
        self._starting = {pod.uid for pod in live if not pod.ready and (not pod.cut_off)}
        return expected
