"""A higher lower bound for pools of few models: each model's best schedule at given memory prices, found exactly.

`bound.lower_bound` considers pairs of consecutive requests of a model. If the second arrives while the first may still
wait, it finds that nothing need be paid or kept between them. So a model with more frequent requests costs nothing at
all, although no schedule could serve it like that. Here a schedule is a sequence of runs in which the model is awake,
and every request is within a run or waits for one that begins in time. The division into hosts, and that bytes belong
to whole models, are left out.

Time is divided into cells. A run [u, v] of cells is charged a load or a wake, and the device's price for the cells
between u and v and for the cells before u in which it must have been loading; the next run begins after as many cells
as that takes. Between two runs, the model's image is kept all the time at the price of memory, or the model is loaded
from files. Only bytes that a schedule in continuous time certainly uses are charged, so each such schedule exists here
at no higher cost, and by weak duality every sequence of prices a, b >= 0 gives a lower bound:

    sum_m (the minimum that model m pays at these prices)  -  sum_c (D a_c + (D + S) b_c)

with D the bytes that hosts can use at a time: each at most those of the fullest set of models that fits its line.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from plimsoll_operator.placement.records.model import Model
from plimsoll_operator.simulation.pool import Host
from plimsoll_operator.simulation.trace import Trace

CELL = 1.0
STEPS = 200
FEW = 12
"""Number of models up to which the fullest set is searched; with more, a line counts in full."""


@dataclass(slots=True)
class Prices:
    """Prices of a byte in each cell: of device memory, and of all memory, with cumulative sums."""

    device: list[float]
    memory: list[float]
    device_sums: list[float] = field(init=False)
    memory_sums: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.device_sums = [0.0, *accumulate(self.device)]
        self.memory_sums = [0.0, *accumulate(self.memory)]


@dataclass(frozen=True, slots=True)
class Run:
    """Awake from cell `first` to cell `last`; `image`: whether it woke from an image kept since the previous run."""

    first: int
    last: int
    image: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """A model with the constraints of its requests, by cell. A run that begins in cell u may follow one that ends in
    cell `after[u]` or later. Its first run begins at `first` at the latest, and its last ends at `last` or later.
    """

    model: Model
    after: list[int]
    first: int
    last: int

    @property
    def least(self) -> int:
        """Minimum bytes of all memory, awake or asleep."""
        return min(self.model.need.device, self.model.need.host)


def lower_bound(
    trace: Trace, hosts: Sequence[Host], waits: float | Sequence[float], steps: int = STEPS, cell: float = CELL
) -> float:
    """Return seconds of loading that every policy pays at least for `trace`, if no request waits longer than its
    `waits` (one number for all requests, or one for each). All models are on disk at first. Each load and wake takes
    the trace's time for its model.
    """
    most = [waits] * len(trace.requests) if isinstance(waits, int | float) else waits
    times = [(request.model, request.at, request.at + wait) for request, wait in zip(trace.requests, most, strict=True)]
    cells = 1 + int(max((due for _, _, due in times), default=0.0) / cell)
    by_model = {key: [(at, due) for asked, at, due in times if asked == key] for key, _, _ in times}
    asked = [_asked(model, by_model[model.key], cell, cells) for model in trace.models if model.key in by_model]
    needs = [found.model.need.device for found in asked]
    device = float(sum(fullest(needs, host.line) for host in hosts))
    memory = device + sum(host.sleepers for host in hosts)
    compulsory = sum(found.model.load_seconds for found in asked)
    return max(compulsory, _ascend(asked, device, memory, cells, cell, steps))


def fullest(needs: Sequence[int], line: int) -> int:
    """Return the most bytes, at most the line, that a set of models can use. With more than FEW models it is the
    smaller of the line and the sum of all.
    """
    if len(needs) > FEW:
        return min(line, sum(needs))
    sums = {0}
    for need in needs:
        sums |= {total + need for total in sums if total + need <= line}
    return max(sums)


def _asked(model: Model, times: Sequence[tuple[float, float]], cell: float, cells: int) -> Asked:
    """Return a model's constraints. `times`: arrival and latest start of each of its requests."""
    after = [-1] * (cells + 1)
    for at, due in times:
        late = int(due / cell) + 1
        if late <= cells:
            after[late] = max(after[late], int(at / cell))
    first, last = min(due for _, due in times), max(at for at, _ in times)
    return Asked(model, list(accumulate(after, max)), int(first / cell), int(last / cell))


def _ascend(asked: Sequence[Asked], device: float, memory: float, cells: int, cell: float, steps: int) -> float:
    """Return the best dual value that subgradient steps find, each as long as would close a gap of a tenth (Polyak)."""
    prices = Prices([0.0] * cells, [0.0] * cells)
    best, reach = 0.0, 0.1
    for step in range(steps):
        value, use_device, use_memory = 0.0, [0.0] * cells, [0.0] * cells
        for found in asked:
            cost, runs = cheapest(found, prices, cell)
            value += cost
            use(found, runs, cell, use_device, use_memory)
        value -= device * prices.device_sums[-1] + memory * prices.memory_sums[-1]
        reach = reach if value > best or step % 10 else reach * 0.8
        best = max(best, value)
        # As shares of the capacities, so that both kinds of prices have one scale.
        over_device = [used / max(1.0, device) - 1 for used in use_device]
        over_memory = [used / max(1.0, memory) - 1 for used in use_memory]
        norm = sum(
            over * over
            for row, price in ((over_device, prices.device), (over_memory, prices.memory))
            for over, paid in zip(row, price, strict=True)
            if over > 0 or paid > 0
        )
        if not norm:
            break
        length = reach * max(best, 1.0) / norm
        prices = Prices(
            [max(0.0, p + length * o / max(1.0, device)) for p, o in zip(prices.device, over_device, strict=True)],
            [max(0.0, p + length * o / max(1.0, memory)) for p, o in zip(prices.memory, over_memory, strict=True)],
        )
    return best


def cheapest(asked: Asked, prices: Prices, cell: float = CELL) -> tuple[float, list[Run]]:
    """Return the minimum that a model pays at these prices, and the runs of a schedule that does."""
    search = _Search(asked, prices, cell)
    return search.found()


class _Search:
    """Shortest paths over cells: `begun[c]` is the minimum for a run that begins in c, `ended[c]` for one that ends."""

    def __init__(self, asked: Asked, prices: Prices, cell: float) -> None:
        self._asked, self._prices, self._cell = asked, prices, cell
        self._cells = len(prices.device)
        self.begun = [math.inf] * self._cells
        self.ended = [math.inf] * self._cells
        self._start = list(range(self._cells))
        self._before: list[tuple[int, bool]] = [(-1, False)] * self._cells

    def found(self) -> tuple[float, list[Run]]:
        """Return the minimum cost of a schedule, and its runs in order."""
        self._sweep()
        last = min(range(self._asked.last, self._cells), key=self.ended.__getitem__)
        runs: list[Run] = []
        at = last
        while at >= 0:
            first = self._start[at]
            before, image = self._before[first]
            runs.append(Run(first, at, image))
            at = before
        return self.ended[last], runs[::-1]

    def _sweep(self) -> None:
        model, prices, least = self._asked.model, self._prices, self._asked.least
        held = [model.need.device * a + least * b for a, b in zip(prices.device, prices.memory, strict=True)]
        loaded, woken = _Window(), _Window()
        goes_on, start = math.inf, -1
        pause = loading_cells(model.wake_seconds, self._cell)
        longer = loading_cells(model.load_seconds, self._cell)
        for c in range(self._cells):
            # A run that ended in cell c - 1 - (cells of loading) may be followed by one that begins in c.
            for window, gap, offset in ((loaded, longer, 0.0), (woken, pause, 1.0)):
                if (v := c - 1 - gap) >= 0:
                    window.push(v, self.ended[v] - offset * least * prices.memory_sums[v + 1])
                window.forget(self._asked.after[c])
            self._begin(c, loaded, woken)
            # A run that continues through c - 1: that cell is between its first and its last, unless it is the first.
            on = goes_on + (held[c - 1] if c else 0.0)
            if c and self.begun[c - 1] < on:
                goes_on, start = self.begun[c - 1], c - 1
            else:
                goes_on = on
            if self.begun[c] <= goes_on:
                self.ended[c], self._start[c] = self.begun[c], c
            else:
                self.ended[c], self._start[c] = goes_on, start

    def _begin(self, c: int, loaded: _Window, woken: _Window) -> None:
        model, prices, least = self._asked.model, self._prices, self._asked.least
        from_files = model.load_seconds + self._while_loading(c, model.load_seconds, least)
        if c <= self._asked.first:
            self.begun[c] = from_files
        value, v = loaded.least()
        if value + from_files < self.begun[c]:
            self.begun[c], self._before[c] = value + from_files, (v, False)
        wake = min(model.wake_seconds, model.load_seconds)
        value, v = woken.least()
        value += wake + self._while_loading(c, model.wake_seconds, 0) + least * prices.memory_sums[c]
        if value < self.begun[c]:
            self.begun[c], self._before[c] = value, (v, True)

    def _while_loading(self, c: int, seconds: float, least: int) -> float:
        first = max(0, c - loading_cells(seconds, self._cell))
        prices = self._prices
        device = prices.device_sums[c] - prices.device_sums[first]
        return self._asked.model.need.device * device + least * (prices.memory_sums[c] - prices.memory_sums[first])


def loading_cells(seconds: float, cell: float) -> int:
    """Return the number of whole cells that a load certainly takes before the cell in which it ends."""
    return max(0, math.floor(seconds / cell) - 1)


class _Window:
    """Minimum of a sliding window of values, whose both ends only grow."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, float]] = deque()

    def push(self, place: int, value: float) -> None:
        while self._kept and self._kept[-1][1] >= value:
            self._kept.pop()
        self._kept.append((place, value))

    def forget(self, before: int) -> None:
        while self._kept and self._kept[0][0] < before:
            self._kept.popleft()

    def least(self) -> tuple[float, int]:
        return (self._kept[0][1], self._kept[0][0]) if self._kept else (math.inf, -1)


def use(asked: Asked, runs: Sequence[Run], cell: float, device: list[float], memory: list[float]) -> None:
    """Add the bytes that a schedule is charged for to `device` and `memory`, which have a number for each cell."""
    model, need, least, before = asked.model, asked.model.need.device, asked.least, -1
    for run in runs:
        seconds = model.wake_seconds if run.image else model.load_seconds
        loading = range(max(0, run.first - loading_cells(seconds, cell)), run.first)
        for c in (*loading, *range(run.first + 1, run.last)):
            device[c] += need
        for c in (*(range(before + 1, run.first) if run.image else loading), *range(run.first + 1, run.last)):
            memory[c] += least
        before = run.last
