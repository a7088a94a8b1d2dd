"""Reports of several gateways, counted over time."""

from __future__ import annotations

import pytest
from operator_support.stub_gateway import StubGateway

from plimsoll_operator.scaling.demand import Demand, ModelDemand
from plimsoll_operator.scaling.demand_window import BIN_SECONDS, BINS, TAIL_COUNT, DemandWindow, Reading, read_off
from plimsoll_operator.scaling.facts import Facts
from plimsoll_operator.spec.identity import ObjectKey

KEY = ObjectKey("team", "m")
NOW = 1767225600.0


class Counted:
    """A window over gateways that are polled every five seconds."""

    def __init__(self, gateways: int = 1) -> None:
        self.now = NOW
        self.gateways = [StubGateway(f"g{number}", now=lambda: self.now) for number in range(gateways)]
        self.window = DemandWindow()
        self.before: dict[str, ModelDemand] = {}
        self.reading = Reading()
        self.go_on(0.0)

    def go_on(self, seconds: float = BIN_SECONDS) -> None:
        self.now += seconds
        for gateway in self.gateways:
            gateway.of(KEY)
            answer: Demand = gateway.answer()
            (entry,) = answer.models
            self.window.count(self.before.get(gateway.instance), entry, answer, self.now)
            self.before[gateway.instance] = entry
        self.reading = self.window.read(list(self.before.values()), self.now)
        self.window.check_integrity()

    def facts(self, ahead: float = 60.0) -> Facts:
        return self.window.facts(self.reading, 1, ahead, self.now, NOW, "")


def test_gateways_requests_add_up_and_replicas_do_not() -> None:
    counted = Counted(2)
    for gateway in counted.gateways:
        model = gateway.of(KEY)
        model.replicas, model.waiting, model.kv = 2, 3, 0.5
        gateway.ask(KEY, 5)
    found = read_off([gateway.answer().models[0] for gateway in counted.gateways])
    assert found == Reading(held=0, in_flight=10, replicas=2, waiting=3, slots=16, kv=0.5)


def test_rate_seconds_and_load_by_littles_law() -> None:
    """Two requests a second of three seconds each are six at a time."""
    counted = Counted()
    gateway = counted.gateways[0]
    gateway.of(KEY).replicas = 2
    gateway.ask(KEY, 6)
    for _ in range(BINS + 5):
        gateway.ask(KEY, 10)
        gateway.end(KEY, 10)
        counted.go_on()
    found = counted.facts()
    assert found.rate == pytest.approx(2.0)
    assert found.expected == pytest.approx(2.0, rel=0.05)
    assert found.seconds == pytest.approx(3.0)
    assert [found.in_flight, found.carried, found.slots] == pytest.approx([6.0, 3.0, 8.0])
    assert found.asked == counted.now


def test_what_waits_is_no_load_of_a_batch() -> None:
    counted = Counted()
    model = counted.gateways[0].of(KEY)
    model.replicas, model.waiting = 1, 4
    counted.gateways[0].ask(KEY, 12)
    for _ in range(20):
        counted.go_on()
    found = counted.facts()
    assert (found.in_flight, found.backlog, found.carried, found.waiting) == (12.0, 4.0, 8.0, 4.0)


def test_a_rate_that_rises_is_expected_to_go_on() -> None:
    counted = Counted()
    for number in range(24):
        counted.gateways[0].ask(KEY, 5 * number)
        counted.gateways[0].end(KEY, 5 * number)
        counted.go_on()
    found = counted.facts(ahead=60.0)
    assert found.rate < 23 < found.expected < 40


def test_latency_is_that_of_the_last_minute_or_of_as_much_as_it_takes() -> None:
    counted = Counted()
    gateway = counted.gateways[0]
    gateway.ask(KEY, 100)
    gateway.end(KEY, 50, first_byte=4.0, gap=0.04)
    counted.go_on()
    assert counted.facts().ttft == pytest.approx(4.875)
    for _ in range(12):
        counted.go_on()
    assert counted.facts().ttft == pytest.approx(4.875), "nothing newer is there"
    gateway.end(KEY, TAIL_COUNT, first_byte=0.2, gap=0.04)
    counted.go_on()
    assert counted.facts().ttft == pytest.approx(0.2425)
    assert counted.facts().itl == pytest.approx(0.0475)
    for _ in range(BINS + 1):
        counted.go_on()
    assert counted.facts().ttft is None
    gateway.end(KEY, 1)
    counted.go_on()
    assert counted.facts().ttft is None, "too few to tell"


def test_replicas_that_come_are_seen_for_a_minute() -> None:
    counted = Counted()
    counted.gateways[0].of(KEY).replicas = 1
    for _ in range(14):
        counted.go_on()
    assert counted.facts().steady
    counted.gateways[0].of(KEY).replicas = 2
    counted.go_on()
    assert not counted.facts().steady
    for _ in range(12):
        counted.go_on()
    assert counted.facts().steady


def test_requests_that_were_held_tell_nothing_of_latency() -> None:
    counted = Counted()
    gateway = counted.gateways[0]
    gateway.hold(KEY, 20)
    counted.go_on()
    gateway.let_go(KEY)
    gateway.end(KEY, 20, first_byte=50.0)
    counted.go_on()
    assert counted.facts().ttft is None
    for _ in range(3):
        gateway.ask(KEY, 20)
        gateway.end(KEY, 20, first_byte=0.2)
        counted.go_on()
    found = counted.facts().ttft
    assert found is not None
    assert found < 0.3


def test_when_it_was_asked_for_is_told_by_our_clock() -> None:
    counted = Counted()
    gateway = counted.gateways[0]
    gateway.now = lambda: counted.now + 250  # its clock is ahead
    gateway.of(KEY).last_asked = counted.now + 250 - 40
    counted.before.clear()
    counted.go_on()
    assert counted.facts().asked == pytest.approx(counted.now - 45, abs=5.1)


def test_after_a_long_silence_it_begins_anew() -> None:
    counted = Counted()
    counted.gateways[0].ask(KEY, 500)
    counted.go_on()
    counted.gateways[0].end(KEY, 500)
    counted.go_on(3600.0)
    assert counted.facts().rate < 1
    counted.go_on()
    assert counted.facts().expected < 1
