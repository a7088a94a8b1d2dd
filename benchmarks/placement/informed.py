"""The planner with known request rates, which estimates the least cost of any rule that cannot see the future.

The bound knows the next request. The most that a rule could learn from the past is each model's request rate. So here
the planner gets the rates of the trace instead of learned ones: over the whole trace for constant popularity, over half
an hour for moving popularity, over two minutes for sessions (which reveals a little of the future). It also has no
minimum residency and no service slices. The difference to the normal planner is the price of learning and of these
rules; the rest of the distance to the bound is the price of not knowing the next request, and of memory that is divided
into hosts.
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
"""Windows in seconds within which rates count as constant; the whole trace for others."""
SHORT = 600.0
"""In shorter windows, a model without requests has its rate over the whole trace."""


class Informed(PlannerPolicy):
    """Known request rates for the planner."""

    name = "informed"

    def __init__(self, trace: Trace) -> None:
        super().__init__(Rules(minimum_residency=0.0, patience=0.0))
        self._rates = Rates(trace, WINDOWS.get(trace.name))

    def rates(self, pool: Pool) -> Mapping[ObjectKey, float]:
        """Return the trace's requests per second of each model around now."""
        return self._rates.at(pool.now)


class Rates:
    """Requests per second of each model of a trace, by window; without windows, of the whole trace."""

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
        """Return the rates of the window that contains this time."""
        return self._tables.get(int(now // self._window), self._otherwise)
