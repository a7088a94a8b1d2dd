"""How a step on a CPU is shared between prompts and those that decode."""

from __future__ import annotations

import pytest

from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.pacing import DECODES_PER_NEWCOMER, LEAST_PROMPT_TOKENS, Pace, Pacer


def pacer(*, most: int = 2048, burst: int = 512, paced: bool = True) -> Pacer:
    return Pacer(Limits(1000, 16, 100, most, 128, paced=paced, burst_tokens=burst))


@pytest.mark.parametrize(("decodes", "newcomers"), [(0, 0), (64, 0), (0, 64), (64, 1)])
def test_without_pacing_every_step_is_a_full_one(decodes: int, newcomers: int) -> None:
    assert pacer(paced=False).next(decodes, newcomers) == Pace(2048)


def test_nobody_waits_for_newcomers_that_do_not_come() -> None:
    assert pacer().next(64, 0) == Pace(2048)


def test_few_newcomers_are_cut_small() -> None:
    assert pacer().next(64, 1) == Pace(64 + 128)
    assert pacer().next(DECODES_PER_NEWCOMER, 1) == Pace(DECODES_PER_NEWCOMER + LEAST_PROMPT_TOKENS)
    assert pacer(most=100).next(64, 1) == Pace(100)


def test_a_burst_has_steps_alone_until_they_make_a_full_one() -> None:
    pace = pacer()
    for _ in range(3):
        assert pace.next(10, 50) == Pace(512, alone=True)
        pace.had_it_alone(filled=True)
    assert pace.next(10, 50) == Pace(522)
    assert pace.next(10, 50) == Pace(512, alone=True)


def test_a_step_that_was_not_filled_held_nobody_up() -> None:
    pace = pacer()
    for filled in (True, True, False):
        pace.next(10, 50)
        pace.had_it_alone(filled=filled)
    assert pace.next(10, 50) == Pace(512, alone=True)


def test_small_steps_are_no_larger_than_full_ones() -> None:
    assert pacer(most=256).next(10, 50) == Pace(256)
