"""Accepted reports of gateways, how long they count, and since when none is missing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_support.stub_gateway import StubGateway

from plimsoll_operator.scaling.demand import Demand, decode_demand
from plimsoll_operator.scaling.gateways import FIRST_SECONDS, HEARD_SECONDS, KEPT_SECONDS, GatewayRegistry

NOW = 1767225600.0


def said(instance: str = "g1", sequence: int = 1, at: float = NOW) -> Demand:
    return decode_demand(json.dumps(StubGateway(instance, sequence, lambda: at).body()).encode())


def registry(*addresses: str, at: float = NOW) -> GatewayRegistry:
    found = GatewayRegistry()
    found.keep(addresses or ("a",), at)
    return found


def test_nothing_is_known_before_anything_was_looked_for() -> None:
    new = GatewayRegistry()
    assert "have not been resolved" in new.unheard(NOW)
    assert new.watched_since(NOW) == NOW
    assert new.watched_since(NOW + 5) == NOW + 5


def test_one_that_answers_is_heard_and_its_word_lasts_a_minute() -> None:
    known = registry()
    assert "has not reported yet" in known.unheard(NOW)
    known.take("a", said(), NOW)
    assert known.unheard(NOW + HEARD_SECONDS) == ""
    assert known.unheard(NOW + HEARD_SECONDS + 1) != ""
    assert len(known.believed(NOW + KEPT_SECONDS)) == 1
    assert known.believed(NOW + KEPT_SECONDS + 1) == []


def test_one_of_two_that_is_not_heard_is_enough() -> None:
    known = registry("a", "b")
    known.take("a", said(), NOW)
    known.fail("b", "it is not reachable")
    assert known.unheard(NOW) == "gateway b: it is not reachable"
    known.take("b", said("g2"), NOW)
    assert known.unheard(NOW) == ""


def test_a_lie_changes_nothing_but_what_is_told() -> None:
    known = registry()
    known.take("a", said(sequence=5), NOW)
    known.take("a", said(sequence=4), NOW + 1)
    assert "sequence is below" in known.unheard(NOW + 1)
    assert [answer.sequence for answer in known.believed(NOW + 1)] == [5]


def test_a_process_that_was_replaced_is_not_believed_again() -> None:
    known = registry()
    known.take("a", said("g1"), NOW)
    known.take("a", said("g2", 0), NOW + 1)
    known.take("a", said("g1", 9), NOW + 2)
    assert "which another process has replaced" in known.unheard(NOW + 2)
    known.check_integrity()


def test_who_listens_hears_what_the_same_process_had_said() -> None:
    told: list[tuple[str, str | None, str]] = []
    known = registry()

    def listen(address: str, before: Demand | None, after: Demand) -> None:
        told.append((address, before.instance if before is not None else None, after.instance))

    known.listen(listen)
    for answer in (said("g1"), said("g1", 2), said("g2", 0)):
        known.take("a", answer, NOW)
    known.take("nobody's", said(), NOW)
    assert told == [("a", None, "g1"), ("a", "g1", "g1"), ("a", None, "g2")]


def test_what_one_that_is_gone_said_counts_a_while() -> None:
    known = registry("a", "b")
    known.take("a", said("g1"), NOW)
    known.take("b", said("g2"), NOW)
    known.keep(("a",), NOW + 1)
    assert known.unheard(NOW + 1) == "", "nobody waits for it"
    assert len(known.believed(NOW + 1)) == 2
    known.keep(("a",), NOW + KEPT_SECONDS + 1)
    assert [gateway.address for gateway in known] == ["a"]


def test_a_name_that_is_not_resolved_leaves_all_unheard() -> None:
    known = registry()
    known.take("a", said(), NOW)
    known.lose("the gateways' name x cannot be resolved")
    assert "cannot be resolved" in known.unheard(NOW)
    assert len(known.believed(NOW)) == 1
    known.keep((), NOW)
    assert "has no addresses" in known.unheard(NOW)


@pytest.mark.parametrize(("gap", "missed"), [(KEPT_SECONDS - 1, False), (KEPT_SECONDS + 1, True)])
def test_a_short_silence_misses_nothing(gap: float, missed: bool) -> None:
    known = registry()
    known.take("a", said(), NOW)
    began = known.watched_since(NOW)
    known.fail("a", "it is not reachable")
    since = known.watched_since(NOW + gap)
    assert (since == began) is not missed


def test_a_new_gateway_has_a_moment_for_its_first_answer() -> None:
    known = registry("a")
    known.take("a", said(), NOW)
    began = known.watched_since(NOW)
    known.keep(("a", "b"), NOW + 1)
    assert known.watched_since(NOW + 1 + FIRST_SECONDS) == began
    assert known.watched_since(NOW + 2 + FIRST_SECONDS) == NOW + 2 + FIRST_SECONDS


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["keep", "take", "fail", "lose", "wait"]),
        st.sampled_from("abc"),
        st.sampled_from(["g1", "g2", "g3"]),
        st.integers(0, 4),
        st.floats(0, 40),
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_only_what_was_heard_of_late_counts(
    steps: list[tuple[str, str, str, int, float]],
) -> None:
    known, now, heard, since = GatewayRegistry(), NOW, dict[str, float](), 0.0
    known.listen(lambda address, before, answer: heard.update({address: now}))
    for verb, address, instance, sequence, seconds in steps:
        now += seconds
        match verb:
            case "keep":
                known.keep({address, "a"}, now)
            case "take":
                known.take(address, said(instance, sequence, now), now)
            case "fail":
                known.fail(address, "no")
            case "lose":
                known.lose("no")
        known.check_integrity()
        assert len(known.believed(now)) <= sum(now - at <= KEPT_SECONDS for at in heard.values())
        found = known.watched_since(now)
        assert since <= found <= now
        since = found
        if not known.unheard(now):
            assert all(now - heard[gateway.address] <= HEARD_SECONDS for gateway in known if gateway.listed)
