"""Which leaders are asked when, and how often their words change for reconciles."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plimsoll_operator.kube.leader_registry import (
    EVERY_SECONDS,
    LONGEST_PAUSE,
    SHOW_SECONDS,
    Entry,
    LeaderRegistry,
)
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.status.groups import Leader

KEY, OTHER = ObjectKey("team", "m"), ObjectKey("team", "other")
A, B = Leader("a", "m-a", "198.18.0.1"), Leader("b", "m-b", "198.18.0.2")


def asked(registry: LeaderRegistry, now: float, count: int = 8) -> list[Entry]:
    return registry.take_due(now, count)


def test_words_are_shown_at_once_and_then_at_most_every_five_seconds() -> None:
    registry = LeaderRegistry()
    assert registry.follow(KEY, [A]) == {}
    (entry,) = asked(registry, 0)
    registry.answered(entry, "load 10%", 0)
    assert registry.follow(KEY, [A]) == {}, "a reconcile for another reason must not write the status more often"
    assert registry.show(0) == [KEY]
    assert registry.follow(KEY, [A]) == {"a": "load 10%"}
    for second in (2.0, 4.0):
        (entry,) = asked(registry, second)
        registry.answered(entry, f"load {second:.0f}0%", second)
        assert registry.show(second) == []
    assert registry.follow(KEY, [A]) == {"a": "load 10%"}
    assert registry.next_show() == SHOW_SECONDS
    assert registry.show(SHOW_SECONDS) == [KEY]
    assert registry.follow(KEY, [A]) == {"a": "load 40%"}
    assert registry.next_show() == math.inf


def test_words_that_return_to_those_shown_wake_nothing() -> None:
    registry = LeaderRegistry()
    registry.follow(KEY, [A])
    for now, words in ((0.0, "x"), (2.0, "y"), (4.0, "x")):
        (entry,) = asked(registry, now)
        registry.answered(entry, words, now)
        assert registry.show(now) == ([KEY] if now == 0 else [])
    assert registry.show(60) == []


def test_a_new_leader_is_asked_before_others_that_are_due() -> None:
    registry = LeaderRegistry()
    registry.follow(KEY, [A])
    (entry,) = asked(registry, 0)
    registry.failed(entry, 0)
    registry.follow(OTHER, [B])
    assert [each.leader for each in asked(registry, 60, 1)] == [B]


def test_a_leader_that_does_not_answer_is_asked_less_often_and_has_no_words() -> None:
    registry = LeaderRegistry()
    registry.follow(KEY, [A])
    (entry,) = asked(registry, 0)
    registry.answered(entry, "load", 0)
    registry.show(0)
    now, pauses = EVERY_SECONDS, []
    for _ in range(5):
        (entry,) = asked(registry, now)
        registry.failed(entry, now)
        pauses.append(registry.next_question() - now)
        now = registry.next_question()
    assert pauses == [2, 4, 8, LONGEST_PAUSE, LONGEST_PAUSE]
    assert registry.show(now) == [KEY]
    assert registry.follow(KEY, [A]) == {}


def test_leaders_that_are_gone_are_forgotten_also_while_they_are_asked() -> None:
    registry = LeaderRegistry()
    registry.follow(KEY, [A, B])
    first, second = asked(registry, 0)
    registry.answered(first, "load", 0)
    registry.show(0)
    assert registry.follow(KEY, [B]) == {}
    registry.forget(KEY)
    registry.answered(second, "late", 1)
    assert registry.show(60) == []
    assert (registry.next_question(), registry.next_show()) == (math.inf, math.inf)
    assert registry.follow(KEY, []) == {}
    registry.check_integrity()


def test_a_leader_with_another_address_is_asked_again() -> None:
    registry = LeaderRegistry()
    registry.follow(KEY, [A])
    (entry,) = asked(registry, 0)
    registry.answered(entry, "load", 0)
    registry.show(0)
    moved = Leader("a", "m-a", "198.18.0.9")
    assert registry.follow(KEY, [moved]) == {}
    assert [each.leader for each in asked(registry, 0)] == [moved]


def test_models_without_groups_leave_nothing_behind() -> None:
    registry = LeaderRegistry()
    assert registry.follow(KEY, []) == {}
    registry.forget(KEY)
    assert not registry.changed.is_set()
    assert registry.next_question() == math.inf


class Machine(RuleBasedStateMachine):
    """Leaders come and go while they are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.registry, self.now = LeaderRegistry(), 0.0
        self.asked: list[Entry] = []
        self.times: dict[ObjectKey, float] = {}

    @rule(key=st.sampled_from([KEY, OTHER]), numbers=st.sets(st.integers(0, 3)), address=st.integers(0, 1))
    def follow(self, key: ObjectKey, numbers: set[int], address: int) -> None:
        leaders = [Leader(f"{key.name}{n}", f"p{n}", f"198.18.0.{address}") for n in sorted(numbers)]
        assert self.registry.follow(key, leaders).keys() <= {leader.uid for leader in leaders}

    @rule(key=st.sampled_from([KEY, OTHER]))
    def forget(self, key: ObjectKey) -> None:
        self.registry.forget(key)
        self.times.pop(key, None)

    @rule(count=st.integers(0, 3))
    def ask(self, count: int) -> None:
        found = self.registry.take_due(self.now, count)
        assert len(found) <= count
        self.asked += found

    @rule(words=st.sampled_from(["", "a", "b"]), fails=st.booleans())
    def answer(self, words: str, fails: bool) -> None:
        if self.asked:
            entry = self.asked.pop(0)
            if fails:
                self.registry.failed(entry, self.now)
            else:
                self.registry.answered(entry, words, self.now)

    @rule(seconds=st.floats(0, 6))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def show(self) -> None:
        for key in self.registry.show(self.now):
            assert self.now >= self.times.get(key, -math.inf) + SHOW_SECONDS
            self.times[key] = self.now

    @invariant()
    def integrity(self) -> None:
        self.registry.check_integrity()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
