"""A few models at a time roll to a new image, and every waiting one is admitted in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_support.objects import EPOCH, model, spec_of
from operator_support.world import SimulatedPod, State, World, fits_of

from plimsoll_operator.planning.upgrade_queue import UpgradeQueue, view_with_upgrades
from plimsoll_operator.spec.identity import ObjectKey

A, B, C = (ObjectKey("team", name) for name in "abc")


def test_no_more_than_the_limit_and_the_next_one_hears_of_it() -> None:
    upgrades = UpgradeQueue(1)
    assert upgrades.take(A)
    assert upgrades.take(A), "asking again is no second turn"
    assert not upgrades.take(B)
    assert not upgrades.take(C)
    assert upgrades.end(A) == [B]
    assert upgrades.take(B)
    assert not upgrades.take(C)
    assert upgrades.end(C) == [], "it has no turn to give"
    assert upgrades.end(B) == []


def test_who_is_stalled_goes_on_and_holds_up_nobody() -> None:
    upgrades = UpgradeQueue(1)
    assert upgrades.take(A)
    assert not upgrades.take(B)
    assert upgrades.stall(A) == [B]
    assert upgrades.take(B)
    assert upgrades.take(A)
    assert upgrades.stall(A) == []
    assert upgrades.end(A) == []
    assert not upgrades.take(A)


def test_a_restart_forgets_no_turn() -> None:
    upgrades = UpgradeQueue(1)
    progressing = {"type": "Progressing", "status": "True", "reason": "Rolling"}
    upgrades.learn(model("b") | {"status": {"conditions": [progressing]}})
    upgrades.learn(model("c") | {"status": {"conditions": [{**progressing, "reason": "Settled"}]}})
    upgrades.learn(model("a"))
    assert not upgrades.take(A)
    assert upgrades.take(B)
    assert upgrades.end(B) == [A]


@pytest.mark.parametrize("leaves", ["is gone", "has another spec"])
def test_who_does_not_take_the_turn_that_it_is_offered_leaves_it_to_the_next(leaves: str) -> None:
    upgrades, spec = UpgradeQueue(1), spec_of("b")
    assert upgrades.take(A)
    assert not upgrades.take(B)
    assert not upgrades.take(C)
    assert upgrades.end(A) == [B]
    if leaves == "is gone":
        assert upgrades.end(B) == [C]
    else:  # its pods are of another spec and none is ready: they go without a turn
        pods = [SimulatedPod("b-1", "old", State.LOADING, EPOCH)]
        seen, woken = view_with_upgrades(spec, fits_of("new"), World(pods).observed(), upgrades)
        assert (len(seen.older), woken) == (1, [C])
    assert upgrades.take(C)
    assert not upgrades.take(B)


def test_who_rolls_keeps_its_turn_until_its_last_old_pod_is_gone() -> None:
    upgrades, spec = UpgradeQueue(1), spec_of("b")
    assert upgrades.take(spec.key)
    assert not upgrades.take(C)
    for pods, woken in (([SimulatedPod("b-1", "new@x", State.LOADING, EPOCH)], []), ([], [C])):
        assert view_with_upgrades(spec, fits_of("new"), World(pods).observed(), upgrades)[1] == woken


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["take", "stall", "end", "decline"]), st.integers(0, 5))))
def test_nobody_waits_while_there_is_a_turn(limit: int, steps: list[tuple[str, int]]) -> None:
    upgrades, rolling, stalled, waiting = UpgradeQueue(limit), set[ObjectKey](), set[ObjectKey](), set[ObjectKey]()
    for step, number in steps:
        key = ObjectKey("team", str(number))
        woken = [key]
        if step == "take":
            assert upgrades.take(key) or key not in rolling | stalled
        else:
            woken = {"stall": upgrades.stall, "end": upgrades.end, "decline": upgrades.decline}[step](key)
            waiting -= {key} if step != "stall" else set()
        if step == "stall" and key in rolling:
            stalled.add(key)
        rolling.discard(key if step in ("stall", "end") else ObjectKey("", ""))
        stalled -= {key} if step == "end" else set()
        for other in woken:
            if step == "take" or other in waiting:
                taken = upgrades.take(other)
                (rolling if taken and other not in stalled else waiting if not taken else stalled).add(other)
                waiting -= {other} if taken else set()
        upgrades.check_integrity()
        assert len(rolling) <= limit
        assert not waiting or len(rolling) == limit
