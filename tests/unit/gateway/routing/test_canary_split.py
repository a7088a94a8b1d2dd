"""Two revisions share a model's requests by its canary, and a conversation stays with one of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.discovery.routing_table import Replica
from plimsoll_gateway.routing.pick import Picker
from plimsoll_gateway.routing.prefix import prefix_blocks
from plimsoll_gateway.routing.scorers import ANYTHING, RoutingHints

STABLE = [Replica(f"s{number}", f"http://s{number}", True, revision="a") for number in range(3)]
SHARES = [0, 1, 10, 50, 99, 100]


def canary(share: int, count: int = 1, revision: str = "b") -> list[Replica]:
    return [Replica(f"c{n}", f"http://c{n}", True, revision=revision, share=share) for n in range(count)]


def picked(picker: Picker, replicas: list[Replica], hints: RoutingHints = ANYTHING) -> Replica:
    found = picker.pick(replicas, hints=hints)
    assert found is not None
    return found


def conversation(number: int) -> RoutingHints:
    return RoutingHints(prefix_blocks(b"root", number.to_bytes(8) * 128))


def assert_near(hits: int, tries: int, share: int) -> None:
    """Within five standard deviations of a binomial distribution: one failure in a million, and the seed is fixed."""
    p = share / 100
    assert abs(hits - tries * p) <= 5 * math.sqrt(tries * p * (1 - p))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("count", [1, 3])
def test_requests_without_a_prefix_are_split_by_lot(share: int, count: int) -> None:
    picker = Picker(draw=random.Random(7))
    replicas = [*STABLE, *canary(share, count)]
    found = [picked(picker, replicas) for _ in range(10_000)]
    assert_near(sum(replica.revision == "b" for replica in found), len(found), share)
    ids = {replica.id for replica in found if replica.revision == "b"}
    assert ids == ({replica.id for replica in canary(share, count)} if share else set())


@pytest.mark.parametrize("share", SHARES)
def test_conversations_are_split_by_their_prefix(share: int) -> None:
    replicas, one, other = [*STABLE, *canary(share)], Picker(draw=random.Random(1)), Picker(draw=random.Random(2))
    found = [picked(one, replicas, conversation(number)).revision for number in range(4_000)]
    assert_near(found.count("b"), len(found), share)
    again = [picked(other, replicas, conversation(number)).revision for number in range(4_000)]
    assert again == found, "same result at every gateway and for every request of the conversation"


def test_who_came_to_the_canary_stays_there_as_its_share_grows() -> None:
    picker = Picker()

    def at(share: int, revision: str = "b") -> set[int]:
        replicas = [*STABLE, *canary(share, revision=revision)]
        return {n for n in range(1_000) if picked(picker, replicas, conversation(n)).share is not None}

    assert at(5) < at(20) < at(60) < at(100)
    assert at(20) != at(20, "c"), "another canary draws again"


@pytest.mark.parametrize("hints", [ANYTHING, conversation(1)], ids=["lot", "prefix"])
@pytest.mark.parametrize("share", SHARES)
def test_a_revision_without_replicas_gets_nothing_and_the_other_all(share: int, hints: RoutingHints) -> None:
    picker = Picker()
    assert {picked(picker, STABLE, hints).revision for _ in range(50)} == {"a"}
    assert {picked(picker, canary(share, 2), hints).revision for _ in range(50)} == {"b"}


def test_a_second_attempt_goes_to_the_other_revision_where_its_own_has_no_other() -> None:
    picker, replicas = Picker(), [*STABLE, *canary(100)]
    assert picked(picker, replicas).id == "c0"
    second = picker.pick(replicas, avoid={"c0"})
    assert second is not None
    assert second.revision == "a"


def test_a_canary_that_cannot_be_reached_is_a_last_resort() -> None:
    picker, (only,) = Picker(clock=lambda: 0.0), canary(100)
    picker.failed(only)
    assert {picked(picker, [*STABLE, only]).revision for _ in range(50)} == {"a"}
    picker.answered(only)
    picker.eject(only)
    assert {picked(picker, [*STABLE, only]).revision for _ in range(50)} == {"a"}


@given(
    st.lists(st.sampled_from([*STABLE, *canary(30, 3)]), unique=True, min_size=1),
    st.sets(st.sampled_from(["s0", "c0", "c1"])),
    st.integers(0, 100),
    st.integers(0, 50),
)
def test_whoever_is_there_is_found(replicas: list[Replica], avoid: set[str], share: int, number: int) -> None:
    split = [replica if replica.share is None else replace(replica, share=share) for replica in replicas]
    for hints in (ANYTHING, conversation(number)):
        found = Picker().pick(split, avoid, hints)
        assert (found is None) == all(replica.id in avoid for replica in split)
        assert found is None or found.id not in avoid
