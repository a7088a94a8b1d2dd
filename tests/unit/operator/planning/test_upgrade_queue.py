"""A few models take a new image at a time, and whoever waits gets a turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_support.objects import EPOCH, model, spec_of
from operator_support.world import SimulatedPod, State, World, fits_of

from plimsoll_operator.planning.upgrade_queue import Turns, view_in_turn
from plimsoll_operator.spec.identity import ObjectKey

A, B, C = (ObjectKey("team", name) for name in "abc")


def test_no_more_than_the_limit_and_the_next_one_hears_of_it() -> None:
    turns = Turns(1)
    assert turns.take(A)
    assert turns.take(A), "asking again is no second turn"
    assert not turns.take(B)
    assert not turns.take(C)
    assert turns.end(A) == [B]
    assert turns.take(B)
    assert not turns.take(C)
    assert turns.end(C) == [], "it has no turn to give"
    assert turns.end(B) == []


def test_who_is_stalled_goes_on_and_holds_up_nobody() -> None:
    turns = Turns(1)
    assert turns.take(A)
    assert not turns.take(B)
    assert turns.stall(A) == [B]
    assert turns.take(B)
    assert turns.take(A)
    assert turns.stall(A) == []
    assert turns.end(A) == []
    assert not turns.take(A)


def test_a_restart_forgets_no_turn() -> None:
    turns = Turns(1)
    progressing = {"type": "Progressing", "status": "True", "reason": "Rolling"}
    turns.learn(model("b") | {"status": {"conditions": [progressing]}})
    turns.learn(model("c") | {"status": {"conditions": [{**progressing, "reason": "Settled"}]}})
    turns.learn(model("a"))
    assert not turns.take(A)
    assert turns.take(B)
    assert turns.end(B) == [A]


@pytest.mark.parametrize("leaves", ["is gone", "has another spec"])
def test_who_does_not_take_the_turn_that_it_is_offered_leaves_it_to_the_next(leaves: str) -> None:
    turns, spec = Turns(1), spec_of("b")
    assert turns.take(A)
    assert not turns.take(B)
    assert not turns.take(C)
    assert turns.end(A) == [B]
    if leaves == "is gone":
        assert turns.end(B) == [C]
    else:  # its pods are of another spec and none is ready: they go without a turn
        pods = [SimulatedPod("b-1", "old", State.LOADING, EPOCH)]
        seen, woken = view_in_turn(spec, fits_of("new"), World(pods).observed(), turns)
        assert (len(seen.older), woken) == (1, [C])
    assert turns.take(C)
    assert not turns.take(B)


def test_who_rolls_keeps_its_turn_until_its_last_old_pod_is_gone() -> None:
    turns, spec = Turns(1), spec_of("b")
    assert turns.take(spec.key)
    assert not turns.take(C)
    for pods, woken in (([SimulatedPod("b-1", "new@x", State.LOADING, EPOCH)], []), ([], [C])):
        assert view_in_turn(spec, fits_of("new"), World(pods).observed(), turns)[1] == woken


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["take", "stall", "end", "decline"]), st.integers(0, 5))))
def test_nobody_waits_while_there_is_a_turn(limit: int, steps: list[tuple[str, int]]) -> None:
    turns, rolling, stalled, waiting = Turns(limit), set[ObjectKey](), set[ObjectKey](), set[ObjectKey]()
    for step, number in steps:
        key = ObjectKey("team", str(number))
        woken = [key]
        if step == "take":
            assert turns.take(key) or key not in rolling | stalled
        else:
            woken = {"stall": turns.stall, "end": turns.end, "decline": turns.decline}[step](key)
            waiting -= {key} if step != "stall" else set()
        if step == "stall" and key in rolling:
            stalled.add(key)
        rolling.discard(key if step in ("stall", "end") else ObjectKey("", ""))
        stalled -= {key} if step == "end" else set()
        for other in woken:
            if step == "take" or other in waiting:
                taken = turns.take(other)
                (rolling if taken and other not in stalled else waiting if not taken else stalled).add(other)
                waiting -= {other} if taken else set()
        turns.check_integrity()
        assert len(rolling) <= limit
        assert not waiting or len(rolling) == limit
