"""Groups of pods: unique among those that serve, small, and reused."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st
from operator_support.objects import EPOCH
from operator_support.world import SimulatedPod, State

from plimsoll_operator.planning.plan import free_groups
from plimsoll_operator.planning.pods import observe_pods, read_pod


def free(*pods: SimulatedPod, count: int = 3) -> list[str]:
    found = observe_pods([read_pod(pod.json()) for pod in pods], EPOCH)
    return list(islice(free_groups(found), count))


def pod(group: str, state: State = State.READY, *, drains: bool = False) -> SimulatedPod:
    gone_by = EPOCH + timedelta(seconds=30) if drains else None
    return SimulatedPod(f"pod-{group}", "new", state, EPOCH, group=group, gone_by=gone_by)


def test_the_replacement_of_a_pod_that_has_ended_is_the_same_again() -> None:
    assert free(pod("0"), pod("1", State.DEAD), pod("2")) == ["1", "3", "4"]


def test_a_pod_that_drains_is_still_who_it_is() -> None:
    assert free(pod("0", drains=True), pod("1", State.DEAD, drains=True), pod("3"))[:2] == ["2", "4"]


def test_pods_of_before_numbers_were_given_take_none() -> None:
    assert free(pod("a1b2c"), pod("00000"), pod("")) == ["0", "1", "2"]


@given(st.lists(st.integers(0, 9).map(str), unique=True), st.integers(0, 5))
def test_no_number_is_given_twice_nor_skipped(known: list[str], count: int) -> None:
    given = free(*map(pod, known), count=count)
    assert len({*known, *given}) == len(known) + count
    assert all(str(number) in {*known, *given} for number in range(max(map(int, given), default=0)))
