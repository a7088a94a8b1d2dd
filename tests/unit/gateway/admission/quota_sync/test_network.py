"""Several gateways on a network that fails in all ways: the requests they admit together, and their shares
afterwards.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from quota_sync_support.network import Network, api_key

from plimsoll_gateway.admission.quota.usage import Kind

ADDRESSES = ("10.0.0.1:8082", "10.0.0.2:8082", "10.0.0.3:8082", "10.0.0.4:8082")
REQUESTS, STREAMS = 24, 9
QUIET_SECONDS = 260.0


class JoiningMachine(RuleBasedStateMachine):
    """Gateways join, and messages are late: no minute exceeds the limit, and the streams never do."""

    most = 1
    loss = 0.0

    def __init__(self) -> None:
        super().__init__()
        keys = api_key(requests_per_minute=REQUESTS), api_key("s", streams=STREAMS)
        self.network = Network(*keys, loss=self.loss, most_delay=0.3)
        for address in ADDRESSES[:2]:
            self.network.start(address)
        self.network.pass_time(5.0)

    @rule(address=st.sampled_from(ADDRESSES))
    def start(self, address: str) -> None:
        if address not in self.network.pods:
            self.network.start(address)

    @rule(data=st.data(), count=st.integers(1, 30))
    def ask(self, data: st.DataObject, count: int) -> None:
        address = data.draw(st.sampled_from(sorted(self.network.pods)))
        for _ in range(count):
            self.network.ask(address)

    @rule(data=st.data(), count=st.integers(1, 10))
    def begin(self, data: st.DataObject, count: int) -> None:
        address = data.draw(st.sampled_from(sorted(self.network.pods)))
        for _ in range(count):
            self.network.ask(address, "s", hold=True)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        pod = self.network.pods[data.draw(st.sampled_from(sorted(self.network.pods)))]
        while pod.streams:
            pod.streams.pop().close()

    @rule(seconds=st.sampled_from([0.02, 0.3, 1.0, 3.5, 15.0, 63.0]))
    def pass_time(self, seconds: float) -> None:
        self.network.pass_time(seconds)

    @invariant()
    def never_more_than_the_bound(self) -> None:
        self.network.check_integrity()
        assert self.network.most_in_a_minute() <= self.most * REQUESTS
        assert self.network.streams() <= self.most * STREAMS

    def teardown(self) -> None:
        """After a quiet time all gateways hold even shares, and no key is reported, whatever happened before."""
        network = self.network
        network.heal()
        network.listed &= network.pods.keys()
        for pod in network.pods.values():
            while pod.streams:
                pod.streams.pop().close()
        network.pass_time(QUIET_SECONDS)
        assert not any(list(pod.node.quota_shares()) for pod in network.pods.values())
        shares = [pod.share("k") for pod in network.pods.values()]
        assert sum(shares) == REQUESTS, shares
        assert max(shares) - min(shares) <= 1, shares
        assert sum(pod.share("s", Kind.STREAMS) for pod in network.pods.values()) == STREAMS


class PartedMachine(JoiningMachine):
    """Some gateways cannot reach each other, in any pattern and for any time, and none dies: the limit holds."""

    @rule(one=st.sampled_from(ADDRESSES), other=st.sampled_from(ADDRESSES))
    def cut(self, one: str, other: str) -> None:
        self.network.cut.add(frozenset([one, other]))

    @rule()
    def heal(self) -> None:
        self.network.heal()


class FailingMachine(PartedMachine):
    """Gateways die, restart, lose messages and cannot reach each other: at most twice the limit."""

    most = 2
    loss = 0.02

    @precondition(lambda self: len(self.network.pods) > 1)
    @rule(data=st.data(), unlisted=st.booleans())
    def die(self, data: st.DataObject, unlisted: bool) -> None:
        address = data.draw(st.sampled_from(sorted(self.network.pods)))
        self.network.kill(address)
        if unlisted:
            self.network.listed.discard(address)


class SurvivingMachine(JoiningMachine):
    """Gateways die and restart, but one that knew the usage survives: the limit holds."""

    @precondition(lambda self: len(self.network.pods) > 1)
    @rule(data=st.data(), unlisted=st.booleans())
    def die(self, data: st.DataObject, unlisted: bool) -> None:
        address = data.draw(st.sampled_from(sorted(self.network.pods)[1:]))
        self.network.kill(address)
        if unlisted:
            self.network.listed.discard(address)


TestJoining = JoiningMachine.TestCase
TestFailing = FailingMachine.TestCase
TestParted = PartedMachine.TestCase
TestSurviving = SurvivingMachine.TestCase
TestJoining.settings = TestFailing.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
TestParted.settings = TestSurviving.settings = TestJoining.settings


def three(limit: int, **options: float) -> Network:
    """Return a network of three gateways that know each other."""
    network = Network(api_key(requests_per_minute=limit), api_key("s", streams=20), **options)  # type: ignore[arg-type]
    for address in ADDRESSES[:3]:
        network.start(address)
    network.pass_time(4.0)
    return network


def offer(network: Network, rate: float, seconds: float, weights: tuple[float, ...]) -> int:
    """Send requests at random times to gateways by weight; return the number admitted."""
    rng, before, ends = random.Random(7), len(network.admitted), network.now + seconds
    while network.now < ends:
        network.pass_time(rng.expovariate(rate))
        network.ask(rng.choices(sorted(network.pods), weights)[0])
    return len(network.admitted) - before


@pytest.mark.parametrize("weights", [(1, 1, 1), (16, 3, 1), (1, 0, 0)])
@pytest.mark.parametrize("limit", [60, 600])
def test_a_minutes_rate_is_within_five_percent_however_uneven_the_load(limit: int, weights: tuple[float, ...]) -> None:
    network = three(limit)
    for _ in range(2):
        admitted = offer(network, limit / 30, 60.0, weights)
        assert 0.95 * limit <= admitted <= 1.05 * limit
    assert network.most_in_a_minute() <= limit


def test_load_that_moves_finds_its_budget_elsewhere() -> None:
    network = three(600)
    offer(network, 9.0, 60.0, (1, 0, 0))
    refused = network.refused
    assert offer(network, 9.0, 60.0, (0, 0, 1)) >= 0.95 * 9 * 60 * 0.95
    assert network.refused - refused <= 0.05 * 600
    assert network.most_in_a_minute() <= 600


def test_streams_are_exact_but_for_one_a_gateway() -> None:
    network = three(600)
    for address in (ADDRESSES[0],) * 30 + ADDRESSES[1:3]:
        network.ask(address, "s", hold=True)
        network.pass_time(0.2)
    assert 20 - 2 <= network.streams() <= 20


def test_with_its_owner_gone_each_keeps_its_share() -> None:
    network = three(600)
    offer(network, 20.0, 30.0, (1, 1, 1))
    owner = network.pods[ADDRESSES[0]].node.membership.owner("k")
    others = [pod for address, pod in network.pods.items() if address != owner]
    before = [pod.share("k") for pod in others]
    network.kill(owner)
    for _ in range(50):
        network.pass_time(1.0)
        assert all(pod.share("k") >= share - 10 for pod, share in zip(others, before, strict=True))
        assert sum(pod.share("k") for pod in others) <= 600
    network.listed.discard(owner)
    network.pass_time(130.0)
    for pod in others:
        network.ask(pod.address)
    network.pass_time(5.0)
    assert sum(pod.share("k") for pod in others) == 600


@pytest.mark.parametrize("kind", [Kind.REQUESTS, Kind.STREAMS])
def test_who_is_always_asked_gives_up_what_others_want(kind: Kind) -> None:
    """Without a fair split, a gateway that had everything would reuse whatever leaves its last minute."""
    network = three(60)
    name = "k" if kind is Kind.REQUESTS else "s"
    for tenth in range(2000):
        alone = tenth < 700
        for address in ADDRESSES[: 1 if alone else 3]:
            streams = network.pods[address].streams
            if not alone or tenth % 10 == 0:
                network.ask(address, name, hold=kind is Kind.STREAMS)
            if streams and tenth % 10 == 0:  # one ends, and the next one starts immediately
                streams.pop(0).close()
                network.ask(address, name, hold=True)
        network.pass_time(0.1)
        if tenth == 699:
            assert network.pods[ADDRESSES[0]].share(name, kind) >= 0.9 * (60 if kind is Kind.REQUESTS else 20)
    shares = [pod.share(name, kind) for pod in network.pods.values()]
    assert max(shares) - min(shares) <= 2, shares
    assert sum(shares) >= (58 if kind is Kind.REQUESTS else 19)
    assert network.most_in_a_minute() <= 60


@pytest.mark.matrix(2)
@pytest.mark.parametrize("rate", [6.0, 60.0])
@pytest.mark.parametrize("near", [1, 2])
@pytest.mark.parametrize("busy", [0, 1, 2])
def test_in_a_split_nobody_serves_what_the_other_side_does(near: int, busy: int, rate: float) -> None:
    """For any shares before the partition, on either side, and any duration."""
    network = three(120)
    weights = [float(at == busy) for at in range(3)]
    offer(network, 8.0, 120.0, tuple(weights))
    assert network.pods[ADDRESSES[busy]].share("k") > 100
    network.cut |= {frozenset([one, other]) for one in ADDRESSES[:near] for other in ADDRESSES[near:3]}
    offer(network, rate, 300.0, (1, 1, 1))
    last = [at for at, _, _ in network.admitted if at > network.now - 60]
    assert len(last) >= 0.95 * 120, "they keep serving with even shares"
    assert all(pod.share("k") >= 38 for pod in network.pods.values())
    network.heal()
    offer(network, rate, 180.0, (1, 1, 1))
    assert network.most_in_a_minute() <= 120


def test_what_only_the_dead_knew_of_is_let_in_again_up_to_an_even_part() -> None:
    """One gateway admitted everything, and died while the other had just started: no gateway knows the usage."""
    network = Network(api_key(requests_per_minute=120))
    network.start(ADDRESSES[0])
    network.pass_time(5.0)
    assert sum(network.ask(ADDRESSES[0]) for _ in range(130)) == 120
    network.start(ADDRESSES[1])
    network.kill(ADDRESSES[0])
    network.pass_time(5.0)
    for _ in range(50):
        network.pass_time(1.0)
        for _ in range(10):
            network.ask(ADDRESSES[1])
    assert network.most_in_a_minute() == 120 + 60


@pytest.mark.parametrize("others", [1, 2])
def test_a_gateway_that_starts_holds_its_even_part_at_once(others: int) -> None:
    """As soon as it accepts requests, after the others have reduced their shares."""
    network = Network(api_key(requests_per_minute=120), api_key("s", streams=12))
    for address in ADDRESSES[:others]:
        network.start(address)
    network.pass_time(5.0)
    started = network.start(ADDRESSES[others])
    waited = 0.0
    while not started.node.joined:
        network.pass_time(0.01)
        waited += 0.01
    assert 1.0 <= waited <= 2.0
    every = others + 1
    assert [started.share("k"), started.share("s", Kind.STREAMS)] == [120 // every, 12 // every]
    assert sum(network.ask(started.address) for _ in range(120)) == 120 // every
    assert sum(network.ask(started.address, "s", hold=True) for _ in range(12)) == 12 // every
    assert sum(network.ask(address) for address in ADDRESSES[:others] for _ in range(120)) == 120 - 120 // every


def test_a_gateway_that_starts_among_the_dead_holds_its_even_part() -> None:
    """DNS still lists them: it waits for their replies for a limited time."""
    network = three(120)
    started = network.start(ADDRESSES[3])
    for address in ADDRESSES[:3]:
        network.kill(address)
    network.pass_time(2.4)
    assert not started.node.joined
    network.pass_time(1.2)
    assert sum(network.ask(started.address) for _ in range(120)) == 120 // 4


def test_one_alone_has_all_and_says_nothing() -> None:
    network = Network(api_key(requests_per_minute=10))
    network.start(ADDRESSES[0])
    network.pass_time(10.0)
    assert sum(network.ask(ADDRESSES[0]) for _ in range(12)) == 10
    assert network.messages == 0
    assert list(network.pods[ADDRESSES[0]].node.quota_shares()) == []


def test_what_one_used_alone_counts_when_others_come() -> None:
    network = Network(api_key(requests_per_minute=10))
    network.start(ADDRESSES[0])
    network.pass_time(10.0)
    assert sum(network.ask(ADDRESSES[0]) for _ in range(8)) == 8
    network.start(ADDRESSES[1])
    network.pass_time(10.0)
    assert sum(network.ask(ADDRESSES[1]) for _ in range(8)) <= 2


def test_a_key_without_limits_is_never_spoken_of() -> None:
    network = Network(api_key("free"))
    for address in ADDRESSES[:2]:
        network.start(address)
    network.pass_time(5.0)
    assert all(network.ask(ADDRESSES[0], "free") for _ in range(100))
    assert list(network.pods[ADDRESSES[0]].node.quota_shares()) == []
