"""Lower bound for the seconds of loading that any policy pays on a trace, even if it knows the future.

The bound is the Lagrangian dual of a relaxation of offline caching, in Belady's sense with sizes and costs. Let a model
have requests at t_1 <= t_2 <= ..., and let no request wait longer than W. Let s_j be the first time at or after t_j at
which the model is awake; then t_j <= s_j <= t_j + W, and s_j does not decrease. The first load costs l seconds. Between
s_j and s_(j+1) every schedule does one of three things:

- it keeps the model on a device all the time, and pays nothing;
- it keeps the model in memory all the time, on a device or as an image, and pays a wake: w seconds;
- it drops the model from memory at some moment, and pays a load after that: l seconds.

The payments of different j are at different times, so they add up. A model that is kept all the time from s_j to
s_(j+1) is kept during I_j = [t_j + W, t_(j+1)], which is within; if I_j is empty, nothing need be paid. At each moment,
models on devices take at most D, the sum of all lines, and models in memory at most D + S, with S the sum of the
sleepers' memory, if every model counts with the smaller of its two sizes. So the minimum payment is at least

    min  sum_j [ l - (l - w) y_j - w x_j ]   over x_j <= y_j in {0, 1}
    s.t. sum_(j: t in I_j) d_j x_j <= D  and  sum_(j: t in I_j) min(d_j, i_j) y_j <= D + S  for all t,

without the division into hosts, replicas, the memory of models that only serve, and the time of loads, all of which
would increase it. By weak duality every pair of multipliers a(t), b(t) >= 0 gives a lower bound of this minimum:

    sum_j min( l, w + m_j B_j, d_j A_j + m_j B_j ) - integral (D a + (D + S) b),

with A_j and B_j the integrals of a and b over I_j. Subgradient steps search for good multipliers. If they stop early,
the bound is lower than possible, but never wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll_operator.simulation.pool import Host
from plimsoll_operator.simulation.trace import Trace

STEPS = 3000
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Gaps:
    """The intervals I_j: index of the first segment of time and of the segment after the last, bytes on a device, the
    smaller of these and the image's bytes, and seconds to load and to wake. `segments`: duration of each segment in
    seconds.
    """

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    device: Array
    least: Array
    load: Array
    wake: Array
    segments: Array


def lower_bound(trace: Trace, hosts: Sequence[Host], wait: float, steps: int = STEPS) -> float:
    """Return seconds of loading that every policy pays at least for `trace`, if no request waits longer than `wait`
    seconds.
    """
    asked = {request.model for request in trace.requests}
    compulsory = sum(model.load_seconds for model in trace.models if model.key in asked)
    gaps = _gaps(trace, wait)
    if gaps is None:
        return compulsory
    device = float(sum(host.line for host in hosts))
    memory = device + sum(host.sleepers for host in hosts)
    return compulsory + _ascend(gaps, device, memory, steps)


def _gaps(trace: Trace, wait: float) -> Gaps | None:
    times: dict[object, list[float]] = defaultdict(list)
    for request in trace.requests:
        times[request.model].append(request.at)
    rows = [
        (
            before + wait,
            after,
            model.need.device,
            min(model.need.device, model.need.host),
            model.load_seconds,
            model.wake_seconds,
        )
        for model in trace.models
        for before, after in zip(times[model.key], times[model.key][1:], strict=False)
        if before + wait < after
    ]
    if not rows:
        return None
    table = np.array(rows)
    edges = np.unique(table[:, :2])
    first, last = np.searchsorted(edges, table[:, 0]), np.searchsorted(edges, table[:, 1])
    return Gaps(
        first, last, table[:, 2], table[:, 3], table[:, 4], np.minimum(table[:, 5], table[:, 4]), np.diff(edges)
    )


def _ascend(gaps: Gaps, device: float, memory: float, steps: int) -> float:
    """Return the best dual value that subgradient steps find. Multipliers are per segment, integrated over it."""
    a, b = np.zeros_like(gaps.segments), np.zeros_like(gaps.segments)
    sum_a, sum_b = np.full_like(a, 1e-12), np.full_like(b, 1e-12)
    # If the device is full for an average gap, its price is about the loading cost of its models.
    scale = float(np.median(gaps.load / gaps.device)) / max(1.0, float(np.median(gaps.last - gaps.first)))
    best = 0.0
    for step in range(steps):
        value, use_a, use_b = _dual(gaps, a, b)
        best = max(best, value - device * float(a.sum()) - memory * float(b.sum()))
        for multipliers, slope, sums in ((a, use_a / device - 1, sum_a), (b, use_b / memory - 1, sum_b)):
            sums += slope * slope
            multipliers += 3 * scale * slope / np.sqrt(sums / (step + 1)) / np.sqrt(step + 1)
            np.maximum(multipliers, 0.0, out=multipliers)
    return best


def _dual(gaps: Gaps, a: Array, b: Array) -> tuple[float, Array, Array]:
    """Return the cost of gaps at these prices, and the bytes of devices and of all memory that they use in each
    segment.
    """
    total_a, total_b = np.concatenate(([0.0], np.cumsum(a))), np.concatenate(([0.0], np.cumsum(b)))
    on_device = gaps.device * (total_a[gaps.last] - total_a[gaps.first])
    in_memory = gaps.least * (total_b[gaps.last] - total_b[gaps.first])
    costs = np.stack((gaps.load, gaps.wake + in_memory, on_device + in_memory))
    choice = costs.argmin(axis=0)
    kept, awake = choice > 0, choice == 2
    return float(costs.min(axis=0).sum()), _use(gaps, gaps.device * awake), _use(gaps, gaps.least * kept)


def _use(gaps: Gaps, taken: Array) -> Array:
    length = len(gaps.segments) + 1
    change = np.bincount(gaps.first, taken, length) - np.bincount(gaps.last, taken, length)
    return np.cumsum(change)[:-1]
