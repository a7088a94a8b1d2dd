"""A key's limits change between admission and reservation: the only error is a correct 429."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from quota_sync_support.network import Network, api_key

from plimsoll_gateway.admission.quota.reservation import Reservation
from plimsoll_gateway.admission.quota.usage import Kind
from plimsoll_gateway.errors.refusals import Refusal

ADDRESSES = ("10.0.0.1:8082", "10.0.0.2:8082")
LIMIT = st.none() | st.integers(1, 50)
TURNS = 2.0
"""Seconds in which a gateway applies a changed file."""


@contextmanager
def refused_for_limits() -> Iterator[None]:
    """Accept a 429 and no other error."""
    try:
        yield
    except Refusal as refusal:
        if refusal.status != 429:
            raise


class ChangingMachine(RuleBasedStateMachine):
    """Two gateways share a key whose file is rewritten or deleted at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(api_key(requests_per_minute=40, tokens_per_minute=40, streams=9))
        for address in ADDRESSES:
            self.network.start(address)
        self.network.pass_time(5.0)
        self.held: list[tuple[ExitStack, Reservation]] = []  # admitted, and not yet reserved

    @rule(requests=LIMIT, tokens=LIMIT, streams=LIMIT)
    def rewrite(self, requests: int | None, tokens: int | None, streams: int | None) -> None:
        limits = {"requests_per_minute": requests, "tokens_per_minute": tokens, "streams": streams}
        self.network.keys["k"] = api_key("k", **{name: limit for name, limit in limits.items() if limit is not None})

    @rule()
    def delete(self) -> None:
        self.network.keys.pop("k", None)

    @rule(seconds=st.sampled_from([0.3, TURNS, 61.0]))
    def pass_time(self, seconds: float) -> None:
        self.network.pass_time(seconds)

    @precondition(lambda self: "k" in self.network.keys)
    @rule(address=st.sampled_from(ADDRESSES))
    def admit(self, address: str) -> None:
        stack = ExitStack()
        with refused_for_limits():
            reservation = stack.enter_context(self.network.pods[address].quotas.admit(self.network.keys["k"]))
            assert isinstance(reservation, Reservation)
            self.held.append((stack, reservation))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=st.integers(1, 60))
    def reserve(self, data: st.DataObject, tokens: int) -> None:
        stack, reservation = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        quota_share = reservation._quota_share
        unlimited = quota_share is not None and quota_share.limits.tokens_per_minute is None
        with stack, nullcontext() if unlimited else refused_for_limits():
            reservation.reserve(tokens)

    @invariant()
    def counts_are_possible(self) -> None:
        for pod in self.network.pods.values():
            pod.quotas.check_integrity()

    def teardown(self) -> None:
        for stack, _ in self.held:
            stack.close()
        self.counts_are_possible()


TestChanging = ChangingMachine.TestCase
TestChanging.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("tokens", [1, 10, 1000])
def test_a_limit_that_is_removed_from_the_file_refuses_nothing(tokens: int) -> None:
    network = Network(api_key(tokens_per_minute=10))
    for address in ADDRESSES:
        network.start(address)
    network.pass_time(5.0)
    pod = network.pods[ADDRESSES[0]]
    with pod.quotas.admit(network.keys["k"]) as reservation:
        network.keys["k"] = api_key(requests_per_minute=5)
        network.pass_time(TURNS)
        reservation.reserve(tokens)
        assert pod.quotas.usage("k").used(Kind.TOKENS, pod.clock()) == tokens
