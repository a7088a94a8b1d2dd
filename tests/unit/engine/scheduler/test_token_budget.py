"""The division of a step on a CPU between prompts and decodes."""

from __future__ import annotations

import pytest

from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.scheduler.token_budget import (
    DECODES_PER_NEWCOMER,
    LEAST_PROMPT_TOKENS,
    STEPS_ALONE,
    Pace,
    Pacer,
)


def pacer(*, most: int = 2048, burst: int = 512, paced: bool = True) -> Pacer:
    return Pacer(Limits(1000, 16, 100, most, 128, paced=paced, burst_tokens=burst))


@pytest.mark.parametrize(("decodes", "newcomers"), [(0, 0), (64, 0), (0, 64), (64, 1)])
def test_without_pacing_every_step_is_a_full_one(decodes: int, newcomers: int) -> None:
    assert pacer(paced=False).next(decodes, newcomers) == Pace(2048)


def test_nobody_waits_for_newcomers_that_do_not_come() -> None:
    assert pacer().next(64, 0) == Pace(2048)


def test_few_newcomers_are_cut_small() -> None:
    assert pacer().next(64, 1) == Pace(64 + 96)
    assert pacer().next(DECODES_PER_NEWCOMER, 1) == Pace(DECODES_PER_NEWCOMER + LEAST_PROMPT_TOKENS)
    assert pacer(most=100).next(64, 1) == Pace(100)


def burst(pace: Pacer, decodes: int, newcomers: int, steps: int) -> list[Pace]:
    """Return the paces of steps that prompts fill whenever these contain prompts only."""
    paces = []
    for _ in range(steps):
        paces.append(pace.next(decodes, newcomers))
        if paces[-1].alone:
            pace.had_it_alone(filled=True)
    return paces


def test_in_a_burst_those_that_decode_take_part_in_every_fourth_step() -> None:
    assert burst(pacer(), 10, 50, 8) == [*[Pace(512, alone=True)] * STEPS_ALONE, Pace(522)] * 2


def test_a_step_that_was_not_filled_held_nobody_up() -> None:
    pace = pacer()
    for filled in (True, True, False):
        pace.next(10, 50)
        pace.had_it_alone(filled=filled)
    assert burst(pace, 10, 50, 4) == [*[Pace(512, alone=True)] * STEPS_ALONE, Pace(522)]


def test_the_last_of_a_burst_are_computed_as_the_others_were_but_not_for_ever() -> None:
    pace = pacer()
    burst(pace, 10, 50, 1)
    tail = burst(pace, 63, 1, 6)
    assert tail == [*[Pace(512, alone=True)] * 2, Pace(63 + 512), Pace(63 + 94), Pace(63 + 94), Pace(63 + 94)]


def test_a_burst_is_over_once_nobody_waits() -> None:
    pace = pacer()
    burst(pace, 10, 50, 1)
    assert pace.next(63, 0) == Pace(2048)
    assert pace.next(63, 1) == Pace(63 + 94)


def test_small_steps_are_no_larger_than_full_ones_and_then_hold_nobody_up() -> None:
    assert burst(pacer(most=256), 10, 50, 5) == [Pace(256)] * 5


def test_those_that_decode_wait_for_no_more_than_two_full_steps() -> None:
    assert burst(pacer(most=600), 10, 50, 4) == [Pace(512, alone=True), Pace(522)] * 2
