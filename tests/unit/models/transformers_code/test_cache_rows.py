"""Grouping of a step's sequences into calls, and of calls into pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.models.layers.states import Spans
from plimsoll_runtime.models.spec.recurrent import OwnCache
from plimsoll_runtime.models.transformers_code.cache_calls import SCORES_BYTES, Calling, Findings, Takes
from plimsoll_runtime.models.transformers_code.cache_rows import OwnStep, Rows, calls_of, pieces_of

FOUND = Findings(
    Calling("model", "past_key_values", positions=True),
    Takes.ANY,
    axes=(),
    vocab_size=10,
    hidden_size=4,
    widest=8,
    heads=SCORES_BYTES // 12 // 100,
    kept=(OwnCache(4, 0, 64),),
)
"""Limit of a hundred scores at a time."""
ANEW = replace(FOUND, calling=Calling("model", None, positions=True))


def step_of(*sequences: tuple[int, int, int]) -> OwnStep:
    """Return a step with (slot, start, length) for each sequence."""
    slots, starts, lengths = (list(each) for each in zip(*sequences, strict=True))
    return OwnStep(slots, starts, Spans(lengths, torch.device("cpu")), Rows(None))


def slots_of(step: OwnStep, found: Findings) -> list[list[int]]:
    return [call.slots for call in calls_of(step, found)]


def test_those_that_stand_at_one_position_with_as_many_tokens_are_one_call() -> None:
    step = step_of((7, 4, 1), (2, 0, 3), (5, 4, 1), (1, 0, 4), (6, 0, 3))
    assert slots_of(step, FOUND) == [[7, 5], [2, 6], [1]]
    assert [call.firsts for call in calls_of(step, FOUND)] == [[0, 4], [1, 9], [5]]


def test_rows_that_do_not_stack_are_calls_of_their_own() -> None:
    assert slots_of(step_of((7, 4, 1), (5, 4, 1)), replace(FOUND, axes=None)) == [[7], [5]]


@pytest.mark.parametrize(
    ("found", "count"), [(FOUND, 4), (ANEW, 1), (replace(FOUND, takes=Takes.FIRST), 4), (replace(FOUND, heads=1), 8)]
)
def test_a_call_has_no_more_rows_than_scores_have_room(found: Findings, count: int) -> None:
    """At position 24 each token sees 25 tokens; without a cache each call computes 25 rows."""
    step = step_of(*((slot, 23, 1) for slot in range(8)))
    assert {len(slots) for slots in slots_of(step, found)} == {count}


@pytest.mark.parametrize(
    ("found", "start", "pieces"),
    [
        (FOUND, 0, [(0, 5), (5, 5), (10, 5), (15, 5)]),
        (FOUND, 180, [(i, 1) for i in range(20)]),
        (replace(FOUND, takes=Takes.FIRST), 0, [(0, 20)]),
        (replace(FOUND, takes=Takes.FIRST), 1, [(i, 1) for i in range(20)]),
        (replace(FOUND, takes=Takes.ONE), 0, [(i, 1) for i in range(20)]),
        (ANEW, 0, [(0, 20)]),
        (ANEW, 180, [(0, 20)]),
    ],
)
def test_how_many_tokens_at_a_time(found: Findings, start: int, pieces: list[tuple[int, int]]) -> None:
    [call] = calls_of(step_of((0, start, 20)), found)
    assert list(pieces_of(call, found)) == pieces


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=12),
    st.sampled_from([FOUND, ANEW, replace(FOUND, axes=None), replace(FOUND, takes=Takes.ONE)]),
)
def test_every_token_is_computed_once(sequences: list[tuple[int, int]], found: Findings) -> None:
    step = step_of(*((slot, *each) for slot, each in enumerate(sequences)))
    seen = []
    for call in calls_of(step, found):
        for slot, first in zip(call.slots, call.firsts, strict=True):
            assert (call.start, call.length) == sequences[slot]
            seen += [first + piece + i for piece, count in pieces_of(call, found) for i in range(count)]
    assert sorted(seen) == list(range(sum(length for _, length in sequences)))


@pytest.mark.parametrize(
    ("found", "rows", "longest", "scores"),
    [
        (FOUND, 8, 10, 80),
        (FOUND, 8, 1000, 1000),
        (replace(FOUND, takes=Takes.FIRST), 20, 1000, 1000),
        (replace(FOUND, takes=Takes.FIRST), 200, 1000, 40_000),
        (replace(FOUND, takes=Takes.FIRST), 2000, 1000, 1_000_000),
        (ANEW, 8, 1000, 1_000_000),
        (replace(FOUND, kept=(OwnCache(4, 640, 0),)), 8, 1000, 0),
    ],
)
def test_bytes_of_the_largest_scores(found: Findings, rows: int, longest: int, scores: int) -> None:
    assert found.scores_bytes(rows, longest) == scores * found.heads * 12


def test_there_are_no_states() -> None:
    step = step_of((0, 0, 1))
    with pytest.raises(TypeError, match="their own caches"):
        step.read(0)
    with pytest.raises(TypeError, match="their own caches"):
        step.write(0, torch.zeros(1))
