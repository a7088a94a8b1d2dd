"""The prediction whether reading or computing is faster follows recent measurements, and never becomes final."""

from __future__ import annotations

import pytest

from plimsoll_runtime.engine.kv.offload.costs import RETRY_AFTER, RETRY_BLOCKS, Costs, Prospect

MS = 1_000_000
BLOCK = 16
LONG = Prospect(ready=3, gained=20, awaited=20)


def costs(*, read_ms: int, computed_ms: int) -> Costs:
    """Return costs with one measurement of each, in milliseconds for a block."""
    found = Costs()
    found.learn_read(read_ms * MS, ok=True)
    found.learn_computed(8 * BLOCK, 8 * computed_ms * MS)
    return found


def test_what_was_not_seen_yet_is_read() -> None:
    found = Costs()
    assert found.choose(LONG, BLOCK) == 23
    found.learn_read(10**12, ok=True)
    assert found.choose(LONG, BLOCK) == 23, "what computing takes is not known"
    found = Costs()
    found.learn_computed(8 * BLOCK, 1)
    assert found.choose(LONG, BLOCK) == 23, "what reading takes is not known"


@pytest.mark.parametrize(
    ("read_ms", "computed_ms", "blocks"), [(1, 10, 23), (10, 10, 23), (11, 10, 3), (0, 0, 23), (1, 0, 3)]
)
def test_what_takes_less_is_chosen_and_of_equals_reading(read_ms: int, computed_ms: int, blocks: int) -> None:
    assert costs(read_ms=read_ms, computed_ms=computed_ms).choose(LONG, BLOCK) == blocks


def test_what_is_read_for_others_before_is_waited_for_too() -> None:
    found = costs(read_ms=1, computed_ms=3)
    assert found.choose(LONG._replace(awaited=60), BLOCK) == 23
    assert found.choose(LONG._replace(awaited=61), BLOCK) == 3
    assert found.choose(LONG._replace(awaited=1, gained=1), BLOCK) == 4


def test_what_is_there_is_held_where_nothing_is_read() -> None:
    assert Costs().choose(Prospect(ready=5, gained=0, awaited=9), BLOCK) == 5


def test_the_choice_follows_what_happens() -> None:
    found = costs(read_ms=1, computed_ms=3)
    for _ in range(4):
        found.learn_read(10 * MS, ok=True)
    assert found.choose(LONG, BLOCK) == 3, "the disk got slow"
    for _ in range(20):
        found.learn_computed(8 * BLOCK, 8 * 30 * MS)
    assert found.choose(LONG, BLOCK) == 23, "the machine got slow too"


def test_what_small_steps_take_says_nothing_of_large_ones() -> None:
    found = costs(read_ms=30, computed_ms=10)
    for _ in range(100):
        found.learn_computed(4, 25 * MS)
    assert found.choose(LONG, BLOCK) == 3, "100 ms a block are what four tokens at a time take"
    found.learn_computed(20 * BLOCK, 20 * 31 * MS)
    assert found.choose(LONG, BLOCK) == 23, "a step as large as this has told"


def test_a_disk_that_fails_spends_time_for_nothing() -> None:
    found = costs(read_ms=1, computed_ms=3)
    for _ in range(4):
        found.learn_read(1 * MS, ok=False)
    assert found.choose(LONG, BLOCK) == 3


def without(found: Costs) -> int:
    """Return how many sequences go without reading until one tries it again."""
    for count in range(10 * RETRY_AFTER):
        if found.choose(LONG, BLOCK) > LONG.ready:
            return count
        found.went_without()
    raise AssertionError("nothing is read any longer")


def test_now_and_then_some_is_read_all_the_same() -> None:
    found = costs(read_ms=100, computed_ms=1)
    for _ in range(3):
        assert without(found) == RETRY_AFTER
        assert found.choose(LONG, BLOCK) == LONG.ready + RETRY_BLOCKS, "a part of what it could have"
        assert found.choose(Prospect(0, 2, 2), BLOCK) == 2
        assert found.choose(LONG, BLOCK, again=True) == 3, "not one of those that went without before"
        found.went_with()
        assert found.choose(LONG, BLOCK) == 3


def test_a_disk_that_is_fast_again_is_noticed() -> None:
    found = costs(read_ms=100, computed_ms=2)
    for _ in range(3):
        assert without(found) == RETRY_AFTER
        found.went_with()
        for _ in range(RETRY_BLOCKS):
            found.learn_read(MS, ok=True)
    assert without(found) == 0
    assert found.choose(LONG, BLOCK) == 23
