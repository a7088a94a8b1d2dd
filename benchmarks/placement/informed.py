"""How far below what any rule pays that cannot see the future? Ours, told how often each model is really asked for.

The bound knows the next request. Nobody does; the most that a rule could learn of the past is how often each model is
asked for. So here the planner is told that, from the trace itself, instead of what it would have learned: over the
whole trace where popularity stands still, over half an hour where it moves, over two minutes where requests come in
sessions (which tells a little of the future). It also needs keep no promise of a minimum residency, and waits for no
turn. What it pays less than ours is the price of learning and of those promises; what is left of the distance to the
bound is the price of not knowing the next request, and of a pool in pieces.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.pool import Rules
from plimsoll_operator.simulation.placement_policy import PlannerPolicy
from plimsoll_operator.simulation.pool import Pool
from plimsoll_operator.simulation.trace import Trace

WINDOWS = {"shifting": 1800.0, "bursty": 120.0}
"""Seconds within which rates are taken to stand still; the whole trace for the others."""
SHORT = 600.0
"""In windows below this a model that is not asked for still has its rate over the whole trace."""


class Informed(PlannerPolicy):
    """See above."""

    name = "informed"

    def __init__(self, trace: Trace) -> None:
        super().__init__(Rules(minimum_residency=0.0, patience=0.0))
        self._rates = Rates(trace, WINDOWS.get(trace.name))

    def rates(self, pool: Pool) -> Mapping[ObjectKey, float]:
        """Requests a second, as they are."""
        return self._rates.at(pool.now)


class Rates:
    """Requests a second for each model of a trace, by windows of time; of the whole trace where there are none."""

    def __init__(self, trace: Trace, window: float | None) -> None:
        end = max((request.at for request in trace.requests), default=0.0) or 1.0
        self._window = window or 2 * end
        counts: dict[int, Counter[ObjectKey]] = defaultdict(Counter)
        for request in trace.requests:
            counts[int(request.at // self._window)][request.model] += 1
        total = Counter(request.model for request in trace.requests)
        least = 1 / end if self._window < SHORT or window is None else 0.0
        self._tables = {
            place: {key: max(total[key] * least, count[key] / self._window) for key in total}
            for place, count in counts.items()
        }
        self._otherwise = {key: count * least for key, count in total.items()}

    def at(self, now: float) -> Mapping[ObjectKey, float]:
        """Of the window that this time lies in."""
        return self._tables.get(int(now // self._window), self._otherwise)
