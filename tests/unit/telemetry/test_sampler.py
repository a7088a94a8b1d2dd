"""Which requests are traced: the same in all processes, the right share, and never more than the bound."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_telemetry import sampler as module
from plimsoll_telemetry.sampler import Sampler
from plimsoll_telemetry.trace_context import TraceContext


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.1, 0.5, 0.9, 1.0])
def test_the_share_is_right(ratio: float) -> None:
    sampler, count = Sampler(ratio, 1e6, Clock()), 20_000
    sampled = sum(sampler.begin(None).sampled for _ in range(count))
    # Six standard deviations of the binomial distribution: a right sampler fails once in a billion runs.
    assert abs(sampled - ratio * count) <= 6 * math.sqrt(count * ratio * (1 - ratio))


@given(st.lists(st.integers(1, 2**128 - 1), min_size=1, max_size=50), st.floats(0, 1), st.floats(0, 1))
def test_all_processes_choose_the_same_traces(ids: list[int], one: float, other: float) -> None:
    """A process with a larger share chooses those of one with a smaller share, and more."""

    def chosen(ratio: float) -> set[int]:
        sampler, ours = Sampler(ratio, 1e6, Clock()), iter(ids)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "new_trace_id", lambda: next(ours))
            return {span.trace_id for span in (sampler.begin(None) for _ in ids) if span.sampled}

    few, many = sorted((one, other))
    assert chosen(few) == chosen(few)
    assert chosen(few) <= chosen(many)


@given(st.booleans(), st.floats(0, 1))
def test_a_callers_choice_is_kept(sampled: bool, ratio: float) -> None:
    caller = TraceContext(7, 8, sampled, "a=b")
    span = Sampler(ratio, 1e6, Clock()).begin(caller)
    assert span == TraceContext(7, span.span_id, sampled, "a=b")
    assert span.span_id != 8


GAPS = st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.01, 0.3, 0.5, 0.999, 1.0, 1.5, 7.0]), min_size=1, max_size=120)


@given(GAPS, st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 10.0]), st.booleans())
def test_the_bound_holds_in_every_second(gaps: list[float], most: float, asked: bool) -> None:
    clock = Clock()
    sampler = Sampler(1.0, most, clock)
    caller = TraceContext(1, 2, sampled=True) if asked else None
    times = []
    for now in accumulate(gaps):
        clock.now = now
        if sampler.begin(caller).sampled:
            times.append(now)
    assert sampler.over_bound == len(gaps) - len(times)
    window = max(1.0, 1 / most) if most else 1.0
    for start in times:
        within = [each for each in times if start <= each < start + window * (1 - 1e-9)]
        assert len(within) <= max(most, 1), f"{len(within)} traces within {window} s"
    assert bool(times) == (most > 0), "the first request is always within the bound"


def test_no_request_within_the_bound_is_dropped() -> None:
    clock = Clock()
    sampler = Sampler(1.0, 8.0, clock)
    for number in range(1000):
        clock.now = number / 8
        assert sampler.begin(None).sampled
    assert sampler.over_bound == 0


def test_requests_that_are_not_sampled_take_nothing_of_the_bound() -> None:
    sampler = Sampler(0.0, 1.0, Clock())
    assert not any(sampler.begin(None).sampled for _ in range(100))
    assert sampler.begin(TraceContext(1, 2, sampled=True)).sampled
    assert sampler.over_bound == 0
