"""The minimum that a pool of models of one size could have paid for its requests, as a linear program with selectable
constraints.

`schedules` finds a bound from prices of memory; here the whole schedule of every model is in one program, solved to its
optimum, and constraints can be added one by one: `Duties`. So the distance between the cost and the minimum can be
split into the cost of each constraint.

A model's schedule is a path through its requests. Asleep, it waits for the first unanswered request, and must be awake
when the first remaining request is due. Then a run begins and lasts as long as it likes; or it begins sooner and lasts
no longer than it must. No other schedule is ever better: a run that begins before a request is due and ends after it
can begin when the request is due. At each moment, the models of a group that load, are awake or end are at most as many
as the group has room for. Fractions of schedules are allowed, so the optimum is a lower bound; whole schedules pay
whole loads and wakes, so the least such sum above the optimum is a bound too. Times are in ticks of a tenth of a
second, which is the resolution of the replay; a load or a wake of fractional ticks ends a little sooner here. Images of
all models are assumed to fit at once, so a model is loaded from files once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

TICK = 0.1
"""Seconds per tick."""
SLACK = 1e-6
_FIRST = ("asleep", 0)


class NoScheduleError(ValueError):
    """No schedule satisfies these constraints."""


@dataclass(frozen=True, slots=True)
class Duties:
    """Constraints of a schedule, in seconds. A model is awake for `answer` after a request began, its memory is in use
    for `stop` after it ended, and it stays for `residency` once it is awake. `on_demand`: a load begins only when a
    request waits for the model.
    """

    answer: float = 0.0
    stop: float = 0.0
    residency: float = 0.0
    on_demand: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Models of which at most `room` use memory at a time."""

    models: frozenset[str]
    room: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds paid for a model's first load, from its files, and for each later wake. `shortest`: minimum durations of
    a load and a wake, if some were shorter than others.
    """

    load: float
    wake: float
    shortest: tuple[float, float] | None = None

    def loading(self, first: bool) -> int:
        """Return the duration of the first load, or of a later wake, in ticks, rounded down."""
        load, wake = self.shortest or (self.load, self.wake)
        return math.floor((load if first else wake) / TICK + SLACK)


@dataclass(frozen=True, slots=True)
class _Arc:
    """An arc between two nodes; the model uses memory from tick `first` to tick `last`."""

    begin: tuple[str, int]
    end: tuple[str, int]
    cost: float
    first: int
    last: int


def least(
    asked: Mapping[str, Sequence[tuple[float, float]]],
    groups: Sequence[Group],
    cost: Cost | Mapping[str, Cost],
    duties: Duties,
) -> float:
    """Return the minimum seconds of loading. `asked` has, for each model, the arrival and the latest start of its
    requests. `cost` is for all models, or one for each; then the optimum is not rounded up to whole loads. Raises
    NoScheduleError if no schedule can start them in time, ValueError for times between ticks.
    """
    program = _Program()
    for group in groups:
        for model in sorted(group.models & asked.keys()):
            program.enter(_ways(asked[model], cost if isinstance(cost, Cost) else cost[model], duties))
        program.confine(group.room)
    found = program.solve()
    if not isinstance(cost, Cost):
        return found
    first = cost.load * sum(1 for group in groups for model in group.models if asked.get(model))
    return first + cost.wake * max(0, math.ceil((found - first) / cost.wake - SLACK))


def _ticks(seconds: float) -> int:
    ticks = round(seconds / TICK)
    if abs(ticks * TICK - seconds) > SLACK:
        raise ValueError(f"{seconds} s is no multiple of {TICK} s: rounding could make the bound invalid")
    return ticks


def _ways(asked: Sequence[tuple[float, float]], cost: Cost, duties: Duties) -> Iterator[_Arc]:
    """Return all arcs of a model's schedules. Nodes: ("asleep", j), in which request j is the first unanswered one, and
    ("awake", t), in which a run may end at tick t or continue. Schedules start asleep before the first request, and end
    after the last.
    """
    due: dict[int, int] = {}
    for at, until in asked:
        due[_ticks(at)] = min(due.get(_ticks(at), _ticks(until)), _ticks(until))
    came = sorted(due)
    soonest = [due[at] for at in came]
    for place in range(len(came) - 2, -1, -1):
        soonest[place] = min(soonest[place], soonest[place + 1])
    answer, stop = _ticks(duties.answer), _ticks(duties.stop)
    stays = max(answer, _ticks(duties.residency))

    def left(end: int) -> int:
        """Return the first request that a run ending then has not answered."""
        return bisect_right(came, end - answer)

    ends = {at + answer for at in came}
    for place, at in enumerate(came):
        seconds = cost.wake if place else cost.load
        loading = cost.loading(first=not place)
        free = came[place - 1] + answer + stop if place else 0
        earliest = max(free + loading, at + loading if duties.on_demand else at + answer - stays)
        until = soonest[place]
        if until >= max(free, at if duties.on_demand else 0) + loading:
            ends.add(until + stays)
            yield _Arc(("asleep", place), ("awake", until + stays), seconds, until - loading, until + stays)
        for begin in range(earliest, until):
            after = left(begin + stays)
            if after > place:
                last = begin + stays + stop
                yield _Arc(("asleep", place), ("asleep", after), seconds, begin - loading, last)
    for end in ends:
        yield _Arc(("awake", end), ("asleep", left(end)), 0.0, end, end + stop)
    for one, other in pairwise(sorted(ends)):
        yield _Arc(("awake", one), ("awake", other), 0.0, one, other)


class _Program:
    """The linear program: rows must sum to zero (to one at a model's start, minus one at its end); columns have
    maxima.
    """

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._most: list[float] = []
        self._right: list[float] = []
        self._entries: list[tuple[int, int, float]] = []
        self._changes: dict[int, list[tuple[int, float]]] = defaultdict(list)

    def enter(self, arcs: Iterator[_Arc]) -> None:
        """Add a model with a variable for the share of each arc."""
        rows: dict[tuple[str, int], int] = {}
        for arc in arcs:
            column = self._column(arc.cost, 1.0)
            for node, sign in ((arc.begin, 1.0), (arc.end, -1.0)):
                if node not in rows:
                    rows[node] = self._row()
                self._entries.append((rows[node], column, sign))
            self._changes[arc.first].append((column, 1.0))
            self._changes[arc.last].append((column, -1.0))
        # Without an arc that begins at the first request, its row is empty and infeasible.
        first = rows[_FIRST] if _FIRST in rows else self._row()
        self._right[first] = 1.0
        self._right[rows[max(node for node in rows if node[0] == "asleep")]] = -1.0

    def confine(self, room: int) -> None:
        """Let at most `room` of the models added since the last call use memory at a time."""
        before: int | None = None
        for tick in sorted(self._changes):
            row, used = self._row(), self._column(0.0, float(room))
            self._entries.append((row, used, 1.0))
            self._entries += [(row, column, -change) for column, change in self._changes[tick]]
            if before is not None:
                self._entries.append((row, before, -1.0))
            before = used
        self._changes.clear()

    def solve(self) -> float:
        """Return the minimum cost."""
        rows, columns, values = zip(*self._entries, strict=True)
        shape = (len(self._right), len(self._costs))
        table = csr_array((values, (rows, columns)), shape=shape)
        right = np.array(self._right)
        found = milp(
            np.array(self._costs),
            constraints=LinearConstraint(table, right, right),
            bounds=Bounds(0.0, np.array(self._most)),
        )
        if not found.success:
            raise NoScheduleError(str(found.message))
        return float(found.fun)

    def _column(self, cost: float, most: float) -> int:
        self._costs.append(cost)
        self._most.append(most)
        return len(self._costs) - 1

    def _row(self) -> int:
        self._right.append(0.0)
        return len(self._right) - 1
