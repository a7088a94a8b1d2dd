"""The minimum cost of a pool of equal models, compared with every schedule of a few ticks."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from placement import gap
from placement.gap import LEVELS, levels
from placement.program import TICK, Cost, Duties, Group, NoScheduleError, least
from placement.replay import DOCUMENT, replay
from placement.run import with_figures
from plimsoll_runtime.residency.settings import Settings

ROOT = Path(__file__).parents[3]
LOAD, WAKE, LAST = 3, 2, 7
Asked = dict[str, list[tuple[int, int]]]


class Phase(NamedTuple):
    """A model at one tick: `name`, ticks spent in it (or left), ticks of responses left, and started requests."""

    name: str = "asleep"
    ticks: int = 0
    busy: int = 0
    begun: int = 0


def brute(asked: Asked, room: int, duties: Duties) -> float | None:
    """Return the ticks of loading of the best of all schedules, or None if there is none."""
    answer, stop, stays = (round(one / TICK) for one in (duties.answer, duties.stop, duties.residency))
    models = sorted(asked)
    due = {model: sorted(asked[model]) for model in models}

    def choices(model: str, phase: Phase, tick: int) -> list[tuple[Phase, int]]:
        """Yield possible next phases with their costs; none if a request is late."""
        if phase.name in ("loading", "ending") and not phase.ticks:
            phase = phase._replace(name="awake" if phase.name == "loading" else "asleep")
        left = [until for at, until in due[model][phase.begun :] if at <= tick]
        if phase.name == "awake":
            if left:
                phase = phase._replace(begun=phase.begun + len(left), busy=answer)
            found = [(phase, 0)]
            if not phase.busy and phase.ticks >= stays:
                asleep = Phase("ending" if stop else "asleep", stop, 0, phase.begun)
                found += [(asleep, 0)]
                phase = asleep
                if not stop:
                    found += loads(model, phase, tick)
            return found
        if any(until <= tick for until in left):
            return []
        return [(phase, 0), *(loads(model, phase, tick) if phase.name == "asleep" else ())]

    def loads(model: str, phase: Phase, tick: int) -> list[tuple[Phase, int]]:
        wanted = any(at <= tick for at, _ in due[model][phase.begun :])
        if phase.begun == len(due[model]) or (duties.on_demand and not wanted):
            return []
        seconds = WAKE if phase.begun else LOAD
        return [(Phase("loading", seconds, 0, phase.begun), seconds)]

    def later(phase: Phase) -> Phase:
        ticks = phase.ticks + (1 if phase.name == "awake" else -1 if phase.name != "asleep" else 0)
        return phase._replace(ticks=ticks, busy=max(0, phase.busy - 1))

    reached: dict[tuple[Phase, ...], int] = {tuple(Phase() for _ in models): 0}
    best: list[int] = []
    for tick in range(LAST + LOAD + 12):
        after: dict[tuple[Phase, ...], int] = {}
        for state, paid in reached.items():
            for options in product(*(choices(m, phase, tick) for m, phase in zip(models, state, strict=True))):
                phases, cost = tuple(phase for phase, _ in options), paid + sum(more for _, more in options)
                if sum(phase.name != "asleep" for phase in phases) > room:
                    continue
                if all(phase.begun == len(due[model]) for phase, model in zip(phases, models, strict=True)):
                    best.append(cost)
                    continue
                then = tuple(map(later, phases))
                after[then] = min(cost, after.get(then, cost))
        reached = after
    return min(best, default=None)


TIMES = st.lists(
    st.tuples(st.integers(0, LAST), st.integers(0, 5)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    min_size=1,
    max_size=3,
    unique_by=lambda pair: pair[0],
)
DUTIES = st.builds(
    lambda answer, stop, stays, on_demand: Duties(answer * TICK, stop * TICK, stays * TICK, on_demand),
    st.integers(0, 2), st.integers(0, 1), st.integers(0, 3), st.booleans(),
)  # fmt: skip


def found(asked: Asked, room: int, duties: Duties) -> float | None:
    seconds = {model: [(TICK * at, TICK * until) for at, until in times] for model, times in asked.items()}
    try:
        bound = least(seconds, [Group(frozenset(asked), room)], Cost(TICK * LOAD, TICK * WAKE), duties)
    except NoScheduleError:
        return None
    return bound / TICK


@settings(max_examples=100, deadline=None)
@given(TIMES, DUTIES)
@example([(0, 6), (4, 4)], Duties(answer=0.2, stop=0.1, residency=0.3))
def test_of_one_model_the_best_of_all_schedules_is_found(times: list[tuple[int, int]], duties: Duties) -> None:
    # One that is due before a load could have ended needs a load that began before the first tick.
    times = [(at + LOAD, until + LOAD) for at, until in times]
    assert found({"a": times}, 1, duties) == pytest.approx(brute({"a": times}, 1, duties))


@settings(max_examples=40, deadline=None)
@given(TIMES, TIMES, DUTIES, st.integers(1, 2))
def test_no_schedule_of_two_models_pays_less(
    one: list[tuple[int, int]], other: list[tuple[int, int]], duties: Duties, room: int
) -> None:
    asked = {"a": [(at + LOAD, until + LOAD) for at, until in one], "b": [(at + LOAD, u + LOAD) for at, u in other]}
    best, bound = brute(asked, room, duties), found(asked, room, duties)
    if best is not None:
        assert bound is not None
        assert bound <= best + 1e-6
        if room == 2:
            assert bound == pytest.approx(best)


def test_each_duty_costs_something_or_nothing_and_the_pool_pays_all_of_them() -> None:
    pool = replay("slow", 2, 0, 60.0, Settings(minimum_residency=2.0))
    by_level = levels(pool, "slow", 2, 2.0)
    rising = [by_level[name] for name in LEVELS]
    assert rising == sorted(rising)
    assert rising[0] < rising[-1] <= pool.seconds + 1e-6
    assert rising[0] >= 8 * 5.6


def test_who_cannot_be_served_is_told() -> None:
    with pytest.raises(NoScheduleError):
        least({"a": [(0.0, 0.0)], "b": [(0.0, 0.0)]}, [Group(frozenset("ab"), 2)], Cost(0.3, 0.2), Duties())


def test_times_between_ticks_are_no_times() -> None:
    with pytest.raises(ValueError, match=r"no multiple of 0\.1 s"):
        least({"a": [(0.25, 9.0)]}, [Group(frozenset("a"), 1)], Cost(0.3, 0.2), Duties())


def test_the_document_shows_what_was_recorded() -> None:
    recorded = json.loads((ROOT / "benchmarks/results/pool-gap.json").read_text())
    document, text = DOCUMENT.read_text(), gap.sheet(recorded["rows"], recorded["known"]).markdown()
    assert with_figures(document, text, gap.BEGIN, gap.END) == document
    assert recorded["known"] == gap.popularity()
    for row in recorded["rows"]:
        steps = [row[level] for level in LEVELS]
        assert steps == sorted(steps)
        assert steps[-1] <= row["paid"] + 0.01
