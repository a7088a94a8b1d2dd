"""The order of sequences by policy, the bound of each favour, and that no sequence starves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from builders import make_core, request, sequence_of
from hypothesis import given
from hypothesis import strategies as st
from simulated import SimulatedRunner

from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.protocol.sampling_params import DEADLINE_LIMIT, PRIORITY_LIMIT, ParamsError, SamplingParams
from plimsoll_runtime.engine.scheduler.policies import (
    DEFAULT_DEADLINE_SECONDS,
    ENOUGH,
    POLICIES,
    PRIORITY_SECONDS,
    SECOND_NS,
    TOKENS_PER_CACHED_TOKEN,
    TOKENS_PER_EXPECTED_TOKEN,
    ByPriority,
    EarliestDeadline,
    FirstComeFirstServed,
    LengthEstimator,
    LongestPrefix,
    Policy,
    ShortestJob,
    new_policy,
)
from plimsoll_runtime.engine.scheduler.scheduler import Scheduler
from plimsoll_runtime.engine.sequence import QueueEntry, SequenceState
from plimsoll_runtime.errors import UsageError

LONGEST = 4096


def sequence(
    arrival: int = 0,
    *,
    seconds: float = 0,
    tokens: int = 0,
    prompt: int = 10,
    limit: int = 100,
    prefix: int = 0,
    **params: Any,
) -> SequenceState:
    """Return a request that arrived as number `arrival`, after so many seconds and tokens of the engine."""
    chosen = SamplingParams(**params)
    arrived = int(seconds * SECOND_NS)
    due = None if chosen.deadline is None else arrived + int(chosen.deadline * SECOND_NS)
    queue = QueueEntry(arrival, arrived, tokens, due, prefix)
    stop_ids = (*chosen.stop_token_ids, *(() if chosen.ignore_eos else (2,)))
    return sequence_of(chosen, queue, [1] * prompt, prompt + limit, stop_ids)


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        ("fcfs", sequence(0, priority=9, limit=4000), sequence(1, priority=-9, limit=1)),
        ("priority", sequence(1, priority=-1), sequence(0)),
        ("priority", sequence(0, priority=2), sequence(1, priority=2)),
        ("priority", sequence(0, priority=1), sequence(1, seconds=PRIORITY_SECONDS + 1)),
        ("deadline", sequence(1, seconds=3, deadline=5), sequence(0, deadline=9)),
        ("deadline", sequence(1, seconds=3, deadline=5), sequence(0)),
        ("deadline", sequence(0), sequence(1, seconds=DEFAULT_DEADLINE_SECONDS, deadline=1)),
        ("sjf", sequence(1, limit=20), sequence(0, limit=21)),
        ("sjf", sequence(1, prompt=20), sequence(0, prompt=21)),
        ("sjf", sequence(0, limit=21), sequence(1, limit=20, tokens=TOKENS_PER_EXPECTED_TOKEN + 1)),
        ("prefix", sequence(1, prefix=16), sequence(0)),
        ("prefix", sequence(0), sequence(1, prefix=16, tokens=16 * TOKENS_PER_CACHED_TOKEN + 1)),
    ],
)
def test_who_is_first(policy: str, first: SequenceState, second: SequenceState) -> None:
    order = new_policy(policy)
    assert order.order_key(first) < order.order_key(second)


REACH = {
    "fcfs": (0, 0),
    "priority": (2 * PRIORITY_LIMIT * PRIORITY_SECONDS, 0),
    "deadline": (int(DEADLINE_LIMIT), 0),
    "sjf": (0, TOKENS_PER_EXPECTED_TOKEN * LONGEST),
    "prefix": (0, TOKENS_PER_CACHED_TOKEN * LONGEST),
}
"""Seconds and engine tokens after which any new request is behind an older one."""


@st.composite
def any_sequence(draw: st.DrawFn, arrival: int, seconds: int, tokens: int) -> SequenceState:
    prompt = draw(st.integers(1, LONGEST - 1))
    return sequence(
        arrival,
        seconds=seconds,
        tokens=tokens,
        prompt=prompt,
        limit=draw(st.integers(1, LONGEST - prompt)),
        prefix=draw(st.integers(0, prompt - 1)),
        priority=draw(st.integers(-PRIORITY_LIMIT, PRIORITY_LIMIT)),
        deadline=draw(st.none() | st.floats(0.001, DEADLINE_LIMIT)),
    )


@pytest.mark.matrix(3)
@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data(), seconds=st.integers(0, 1000), tokens=st.integers(0, 10**6))
def test_whoever_comes_late_enough_ranks_behind(policy: str, data: st.DataObject, seconds: int, tokens: int) -> None:
    reach_seconds, reach_tokens = REACH[policy]
    old = data.draw(any_sequence(0, seconds, tokens))
    new = data.draw(any_sequence(1, seconds + reach_seconds, tokens + reach_tokens))
    order = new_policy(policy)
    assert order.order_key(old) < order.order_key(new)


class Crowd:
    """A small engine with an endless stream of favoured requests, and an unfavoured one."""

    def __init__(self, policy: Policy) -> None:
        self.now_ns = SECOND_NS
        self.scheduler = Scheduler(Limits(33, 4, 128, 16, 2), policy, lambda: self.now_ns)
        self.runner = SimulatedRunner(33, 4, 16, 2)
        self.count = 0

    def favoured(self) -> None:
        """Add a request that is short, urgent, and has a cached prefix."""
        self.count += 1
        self.scheduler.add(request(f"f{self.count}", [5] * 20, max_tokens=2, priority=-5, deadline=3))

    def steps_of_the_unfavoured(self, patience: int) -> int | None:
        """Return the step in which the unfavoured request ends; None if it takes more than `patience` steps."""
        for _ in range(4):
            self.favoured()
        self._step()
        self.scheduler.add(request("unfavoured", list(range(30)), max_tokens=12, priority=5))
        for step in range(1, patience + 1):
            self.favoured()
            if self._step():
                return step
        return None

    def _step(self) -> bool:
        self.scheduler.expire()
        step = self.scheduler.schedule()
        assert step is not None
        outputs = self.scheduler.commit(step, self.runner.run(step.plan))
        self.scheduler.check_integrity()
        self.now_ns += SECOND_NS
        return any(o.request_id == "unfavoured" and o.finish_reason is not None for o in outputs)


FOREVER = 10**6


@pytest.mark.parametrize(
    ("bounded", "boundless", "within"),
    [
        (FirstComeFirstServed, None, 40),
        (lambda: ByPriority(4 * SECOND_NS), lambda: ByPriority(FOREVER * SECOND_NS), 120),
        (lambda: EarliestDeadline(40 * SECOND_NS), lambda: EarliestDeadline(FOREVER * SECOND_NS), 120),
        (lambda: ShortestJob(8), lambda: ShortestJob(FOREVER), 120),
        (lambda: LongestPrefix(16), lambda: LongestPrefix(FOREVER), 120),
    ],
    ids=["fcfs", "priority", "deadline", "sjf", "prefix"],
)
def test_an_endless_stream_of_favoured_requests_starves_nobody(
    bounded: Callable[[], Policy], boundless: Callable[[], Policy] | None, within: int
) -> None:
    steps = Crowd(bounded()).steps_of_the_unfavoured(within)
    assert steps is not None
    if boundless is not None:
        assert Crowd(boundless()).steps_of_the_unfavoured(within) is None, "the crowd would not have starved it"


def test_lengths_are_learnt_by_kind_of_request() -> None:
    lengths = LengthEstimator()
    assert lengths.expect(sequence(limit=1000)) == 1000, "nothing is known: as long as it may be"
    for _ in range(ENOUGH):
        lengths.learn(_ended(sequence(prompt=10, limit=1000), 30))
        lengths.learn(_ended(sequence(prompt=500, limit=1000), 90))
    assert lengths.expect(sequence(prompt=9, limit=900)) == 30
    assert lengths.expect(sequence(prompt=400, limit=900)) == 90
    assert 30 < lengths.expect(sequence(prompt=3000, limit=900)) < 90, "of that limit, all prompts together"
    assert lengths.expect(sequence(prompt=9, limit=20)) == 20, "never more than it may have"
    assert 30 < lengths.expect(sequence(prompt=9, limit=200)) < 90, "all requests together"


def test_what_cannot_end_early_is_as_long_as_it_may_be() -> None:
    lengths = LengthEstimator()
    for _ in range(ENOUGH):
        lengths.learn(_ended(sequence(limit=100), 10))
        lengths.learn(_ended(sequence(limit=100, ignore_eos=True), 100))
    assert lengths.expect(sequence(limit=100, ignore_eos=True)) == 100
    assert lengths.expect(sequence(limit=100)) == 10


def test_an_output_that_a_stop_token_may_end_is_learnt() -> None:
    lengths = LengthEstimator()
    options: dict[str, Any] = {"ignore_eos": True, "stop_token_ids": (7,)}
    for _ in range(ENOUGH):
        lengths.learn(_ended(sequence(limit=100, **options), 10))
    assert lengths.expect(sequence(limit=100, **options)) == 10


def test_what_is_learnt_follows_the_traffic() -> None:
    lengths = LengthEstimator()
    for length in [20] * 200 + [200] * 200:
        lengths.learn(_ended(sequence(limit=1000), length))
    assert 190 <= lengths.expect(sequence(limit=1000)) <= 200


def _ended(state: SequenceState, length: int) -> SequenceState:
    for _ in range(length):
        state.append(1)
    return state


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"priority"}))
def test_a_priority_that_would_be_ignored_is_refused(policy: str) -> None:
    core, _ = make_core(policy=policy)
    with pytest.raises(UsageError, match=f"priority -1 would be ignored.*{policy!r}.*--policy priority"):
        core.add(request("r", [1], priority=-1))
    core.add(request("r", [1], priority=0, deadline=5))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("priority", PRIORITY_LIMIT + 1, "from -100 .first. to 100"),
        ("priority", -PRIORITY_LIMIT - 1, "not -101"),
        ("deadline", 0.0, "more than 0"),
        ("deadline", -1.0, "more than 0"),
        ("deadline", DEADLINE_LIMIT + 1, "at most 3600"),
        ("deadline", float("nan"), "not nan"),
    ],
)
def test_values_without_sense_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=f"{field}: .*{message}"):
        SamplingParams(**{field: value})
