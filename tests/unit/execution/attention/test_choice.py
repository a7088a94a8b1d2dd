"""Which of the measured backends attend, and in what order others follow: a rule of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.execution.attention.benchmark import Timing
from plimsoll_runtime.execution.attention.selection import DIVIDING, BackendChoice, ranked

TIMES = {"a": Timing(decode_ms=1.0, chunk_ms=10.0), "b": Timing(decode_ms=9.0, chunk_ms=4.0), "c": Timing(9.5, 5.0)}


def names(timings: dict[str, Timing], *, divide: bool = True) -> list[str]:
    return [choice.name for choice in ranked(timings, divide=divide)]


def test_one_for_prompts_and_another_for_decodes() -> None:
    assert names(TIMES) == ["b+a", "c+a", "a", "b", "c"]
    assert names(TIMES, divide=False) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "times",
    [
        {"a": Timing(1.0, 4.0), "b": Timing(9.0, 3.9)},
        {"a": Timing(1.0, 4.0), "b": Timing(2.0, 5.0)},
        {"a": Timing(1.0, 4.0)},
        {"a": Timing(0.0, 0.0), "b": Timing(0.0, 0.0)},
    ],
    ids=["little", "worse", "alone", "nothing"],
)
def test_one_for_all(times: dict[str, Timing]) -> None:
    assert names(times) == list(times)


def test_names_are_read_back() -> None:
    for choice in (BackendChoice("flash-attn", "flash-attn"), BackendChoice("cudnn-paged", "triton")):
        assert BackendChoice.of(choice.name) == choice


@given(st.dictionaries(st.sampled_from("abcd"), st.builds(Timing, st.floats(0, 9), st.floats(0, 9)), min_size=1))
def test_each_alone_and_only_pairs_that_gain(times: dict[str, Timing]) -> None:
    found = ranked(times, divide=True)
    assert {c.name for c in found} >= set(times)
    for choice in found:
        if choice.chunks != choice.decodes:
            taken = DIVIDING * (times[choice.chunks].chunk_ms + times[choice.decodes].decode_ms)
            assert taken < min(times[choice.chunks].total_ms, times[choice.decodes].total_ms)
    fastest = min(
        [t.total_ms for t in times.values()]
        + [DIVIDING * (p.chunk_ms + d.decode_ms) for p in times.values() for d in times.values() if p is not d]
    )
    first = found[0]
    gain = 1.0 if first.chunks == first.decodes else DIVIDING
    assert gain * (times[first.chunks].chunk_ms + times[first.decodes].decode_ms) == pytest.approx(fastest)
