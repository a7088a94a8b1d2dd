"""The least that a pool of models of one size could have paid for its requests: a linear program, by what it must obey.

`schedules` prices memory until no prices say more; here the whole schedule of every model is in one program, solved to
its optimum, and duties can be laid on it one after the other: `Duties`. So the distance between what was paid and
the least can be told apart into what each of them costs.

A model's schedule is a way through its requests. Asleep, it waits for the first request that it has not answered yet,
and must be awake when the first of those that are left is due. It begins then, and goes on for as long as it likes; or
it begins sooner, and is awake no longer than it must. No other schedule is ever of use: who begins before a request is
due and ends after it can begin when it is due. At each moment the models of a group that load, are awake or end are no
more than the group has room for. Shares of schedules are allowed, so that the optimum is a lower bound; every whole
schedule pays whole loads and wakes, so that the least such sum above the optimum is one too.

Times are in ticks of a tenth of a second, of which all that the replay knows is made; a load or a wake that takes no
whole ticks has ended a little sooner here. Images of all models are taken to fit beside each other: a model
comes from its files once.
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
"""Seconds."""
SLACK = 1e-6
_FIRST = ("asleep", 0)


class NoScheduleError(ValueError):
    """No schedule obeys these duties."""


@dataclass(frozen=True, slots=True)
class Duties:
    """What a schedule must obey, in seconds.

    A model is awake for `answer` after a request began, its memory is in use for `stop` after it ended, and it stays
    for `residency` once it is awake. `on_demand`: its load begins when a request waits for it, and no sooner.
    """

    answer: float = 0.0
    stop: float = 0.0
    residency: float = 0.0
    on_demand: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Models that share the room for so many of them."""

    models: frozenset[str]
    room: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that are paid for a model's first load, from its files, and for each wake after it.

    `shortest`: in how many seconds a load and a wake are done at the least, where some were done sooner than others.
    """

    load: float
    wake: float
    shortest: tuple[float, float] | None = None

    def loading(self, first: bool) -> int:
        """Whole ticks that the first load takes, or any wake."""
        load, wake = self.shortest or (self.load, self.wake)
        return math.floor((load if first else wake) / TICK + SLACK)


@dataclass(frozen=True, slots=True)
class _Arc:
    """From one node to another; the model takes memory from tick `first` to tick `last`."""

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
    """Seconds of loading. `asked` has, for each model, when its requests came and by when they were to begin.

    `cost` is of all models, or has one for each; then the optimum is not rounded up to whole loads.
    Raises NoScheduleError where nobody could have had them begin in time, ValueError for times between ticks.
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
        raise ValueError(f"{seconds} s are no whole tenths: what is rounded may be no bound")
    return ticks


def _ways(asked: Sequence[tuple[float, float]], cost: Cost, duties: Duties) -> Iterator[_Arc]:
    """All that a model's schedule can be made of.

    Node ("asleep", j): request j is the first that is left; ("awake", t). It starts asleep before the first
    request, and ends behind the last.
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
        """The first request that a run which ends then has not answered."""
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
    """Rows that are to be zero (or one, where a model starts; minus one, where it ends); columns with their most."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._most: list[float] = []
        self._right: list[float] = []
        self._entries: list[tuple[int, int, float]] = []
        self._changes: dict[int, list[tuple[int, float]]] = defaultdict(list)

    def enter(self, arcs: Iterator[_Arc]) -> None:
        """One more model: its share of each arc."""
        rows: dict[tuple[str, int], int] = {}
        for arc in arcs:
            column = self._column(arc.cost, 1.0)
            for node, sign in ((arc.begin, 1.0), (arc.end, -1.0)):
                if node not in rows:
                    rows[node] = self._row()
                self._entries.append((rows[node], column, sign))
            self._changes[arc.first].append((column, 1.0))
            self._changes[arc.last].append((column, -1.0))
        # Without a way that begins at the first request its row is empty, and asks for what cannot be.
        first = rows[_FIRST] if _FIRST in rows else self._row()
        self._right[first] = 1.0
        self._right[rows[max(node for node in rows if node[0] == "asleep")]] = -1.0

    def confine(self, room: int) -> None:
        """Those that were entered since the last call share this room."""
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
        """The least cost."""
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
