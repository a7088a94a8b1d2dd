"""Evidence since a step began: nothing from before it, nothing twice, with gateways that come and go."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from operator_support.objects import EPOCH

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.canary.counts import RequestCounts
from plimsoll_operator.canary.evidence import Evidence
from plimsoll_operator.canary.state import Canary, State

KEY = ObjectKey("team", "m")
CANARY = Canary("b", "a", 1, 2, 10, State.OBSERVING, EPOCH, "t", "")


def seen(requests: int, failed: int) -> RequestCounts:
    return RequestCounts(requests, failed, requests, ((0.5, requests - failed), (1.0, requests)))


def test_what_was_before_the_step_counts_for_nothing() -> None:
    evidence = Evidence()
    assert evidence.since(KEY, CANARY, {"g": {"b": seen(5, 5), "a": seen(50, 0)}}) == (RequestCounts(), RequestCounts())
    assert evidence.since(KEY, CANARY, {"g": {"b": seen(7, 6), "a": seen(60, 0)}}) == (seen(2, 1), seen(10, 0))
    following = replace(CANARY, step=2)
    assert evidence.since(KEY, following, {"g": {"b": seen(8, 6), "a": seen(61, 0)}}) == (
        RequestCounts(),
        RequestCounts(),
    )
    evidence.forget(KEY)
    assert evidence.since(KEY, following, {"g": {"b": seen(9, 6)}}) == (RequestCounts(), RequestCounts())


def test_all_that_is_not_the_canary_is_stable_whatever_its_label() -> None:
    evidence = Evidence()
    evidence.since(KEY, CANARY, {"g": {}})
    found = evidence.since(KEY, CANARY, {"g": {"": seen(3, 0), "a": seen(4, 1), "b": seen(5, 0)}})
    assert found == (seen(5, 0), seen(7, 1))


def test_an_answer_that_breaks_off_in_the_step_is_one_of_its_requests() -> None:
    evidence = Evidence()
    evidence.since(KEY, CANARY, {"g": {"b": RequestCounts(10, 0)}})
    assert evidence.since(KEY, CANARY, {"g": {"b": RequestCounts(10, 2)}})[0] == RequestCounts(2, 2)


class Counting(RuleBasedStateMachine):
    """Gateways start, count, restart and are unreachable; the evidence equals what was counted while they were
    observed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.evidence, self.born = Evidence(), 0
        self.totals: dict[str, dict[str, RequestCounts]] = {}
        self.heard: dict[str, dict[str, RequestCounts]] = {}
        self.expected = {"a": RequestCounts(), "b": RequestCounts()}
        self.evidence.since(KEY, CANARY, {})

    @rule()
    def begin(self) -> None:
        self.born += 1
        self.totals[f"g{self.born}"] = {}

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.totals:
            del self.totals[data.draw(st.sampled_from(sorted(self.totals)))]

    @rule(data=st.data(), revision=st.sampled_from("ab"), more=st.integers(1, 9), failed=st.integers(0, 9))
    def count(self, data: st.DataObject, revision: str, more: int, failed: int) -> None:
        if self.totals:
            found = self.totals[data.draw(st.sampled_from(sorted(self.totals)))]
            found[revision] = found.get(revision, RequestCounts()) + seen(more, min(more, failed))

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        names = data.draw(st.sets(st.sampled_from(sorted(self.totals)))) if self.totals else set[str]()
        for name in names:
            before = self.heard.get(name)
            for revision, now in self.totals[name].items() if before is not None else ():
                earlier = before.get(revision, RequestCounts()) if before is not None else RequestCounts()
                if now != earlier:
                    self.expected[revision] = self.expected[revision] + (now - earlier)
            self.heard[name] = dict(self.totals[name])
        found = self.evidence.since(KEY, CANARY, {name: self.totals[name] for name in names})
        assert found == (self.expected["b"], self.expected["a"])

    @invariant()
    def is_whole(self) -> None:
        self.evidence.check_integrity()


Counting.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestCounting = Counting.TestCase
