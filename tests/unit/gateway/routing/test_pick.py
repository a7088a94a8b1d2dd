"""The picker agrees with a plain count, sends prefixes to one replica up to the load bound, and spreads the rest."""

from __future__ import annotations

import math
import random
from collections import Counter
from contextlib import ExitStack

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plimsoll_gateway.discovery.routing_table import Replica
from plimsoll_gateway.routing.loads import FRESH_SECONDS, UNKNOWN_SLOTS
from plimsoll_gateway.routing.pick import BOUND, LEISURE, SUSPECT_SECONDS, Picker
from plimsoll_gateway.routing.prefix import prefix_blocks
from plimsoll_gateway.routing.scorers import ANYTHING, RoutingHints

REPLICAS = [Replica(str(index), f"http://{index}", True) for index in range(4)]
PREFIXES = [prefix_blocks(b"root", bytes([number]) * 2048) for number in range(3)]


class PickerMachine(RuleBasedStateMachine):
    """Holds and releases at random, with and without prefixes; the picker must agree with a plain count."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.picker = Picker(clock=lambda: self.now, draw=random.Random(0))
        self.held: list[tuple[Replica, ExitStack]] = []
        self.suspects: dict[str, float] = {}

    @rule(
        avoid=st.sets(st.sampled_from([r.id for r in REPLICAS])),
        among=st.lists(st.sampled_from(REPLICAS), unique=True),
        blocks=st.sampled_from([(), *PREFIXES]),
        times=st.sampled_from([1, 20]),
    )
    def pick_and_hold(self, avoid: set[str], among: list[Replica], blocks: tuple[int, ...], times: int) -> None:
        for _ in range(times):
            picked = self.picker.pick(among, avoid, RoutingHints(blocks))
            allowed = [replica for replica in among if replica.id not in avoid]
            trusted = [replica for replica in allowed if self.suspects.get(replica.id, 0) <= self.now] or allowed
            if picked is None:
                assert not allowed
                return
            assert picked in trusted
            self._check_bound(picked, trusted, blocks)
            stack = ExitStack()
            stack.enter_context(self.picker.hold(picked))
            self.held.append((picked, stack))

    def _check_bound(self, picked: Replica, trusted: list[Replica], blocks: tuple[int, ...]) -> None:
        counts = Counter(replica.id for replica, _ in self.held)
        total = sum(counts[replica.id] for replica in trusted)
        if blocks:
            assert counts[picked.id] < max(math.ceil(BOUND * (total + 1) / len(trusted)), LEISURE * UNKNOWN_SLOTS)
        elif len(trusted) > 1:  # it was compared with another one
            assert counts[picked.id] <= max(counts[replica.id] for replica in trusted if replica is not picked)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            _, stack = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            stack.close()

    @rule(replica=st.sampled_from(REPLICAS))
    def fail(self, replica: Replica) -> None:
        self.picker.failed(replica)
        self.suspects[replica.id] = self.now + SUSPECT_SECONDS

    @rule(replica=st.sampled_from(REPLICAS))
    def response(self, replica: Replica) -> None:
        self.picker.answered(replica)
        self.suspects.pop(replica.id, None)

    @rule(seconds=st.sampled_from([0.5, SUSPECT_SECONDS]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def counts_agree(self) -> None:
        self.picker.check_integrity()
        counts = Counter(replica.id for replica, _ in self.held)
        assert all(self.picker.in_flight(replica.id) == counts[replica.id] for replica in REPLICAS)
        assert all(self.picker.load(replica.id) == counts[replica.id] for replica in REPLICAS)


TestPicker = PickerMachine.TestCase


def hold(picker: Picker, stack: ExitStack, count: int, hints: RoutingHints = ANYTHING) -> list[str]:
    """Pick `count` times, hold the replicas, and return their ids."""
    picked = []
    for _ in range(count):
        replica = picker.pick(REPLICAS, (), hints)
        assert replica is not None
        stack.enter_context(picker.hold(replica))
        picked.append(replica.id)
    return picked


def test_equals_are_taken_in_turn() -> None:
    picker = Picker()
    picked = Counter(replica.id for replica in (picker.pick(REPLICAS) for _ in range(40)) if replica is not None)
    assert set(picked.values()) == {10}


def test_of_two_the_less_busy_one_is_taken() -> None:
    picker = Picker()
    with picker.hold(REPLICAS[0]):
        assert {picker.pick(REPLICAS[:2]) for _ in range(10)} == {REPLICAS[1]}


def test_two_choices_keep_the_loads_close() -> None:
    with ExitStack() as stack:
        counts = Counter(hold(Picker(draw=random.Random(1)), stack, 400))
    assert max(counts.values()) - min(counts.values()) <= 4


def test_what_replicas_say_of_others_requests_counts_while_it_is_fresh() -> None:
    now = 0.0
    picker = Picker(clock=lambda: now)
    busy, idle = REPLICAS[:2]
    with picker.hold(busy):
        picker.heard(busy, b"running=9, waiting=2, slots=16, kv=0.50")
    assert picker.load(busy.id) == 10  # one of them was ours
    assert {picker.pick([busy, idle]) for _ in range(10)} == {idle}
    now += FRESH_SECONDS + 1
    assert picker.load(busy.id) == 0
    assert {picker.pick([busy, idle]) for _ in range(10)} == {busy, idle}


def test_a_replica_with_more_places_takes_more() -> None:
    picker = Picker(draw=random.Random(2))
    large, small = REPLICAS[:2]
    picker.heard(large, b"running=0, waiting=0, slots=96, kv=0.00")
    picker.heard(small, b"running=0, waiting=0, slots=32, kv=0.00")
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        for _ in range(128):
            replica = picker.pick([large, small])
            assert replica is not None
            stack.enter_context(picker.hold(replica))
            counts[replica.id] += 1
    assert counts[large.id] == pytest.approx(96, abs=1)
    assert picker.capacity([large, small]) == 128
    assert picker.capacity(REPLICAS[:3]) == 128 + UNKNOWN_SLOTS


def test_one_prefix_lands_on_one_replica_until_that_is_loaded_beyond_the_bound() -> None:
    picker, hints = Picker(), RoutingHints(PREFIXES[0])
    leisure = int(LEISURE * UNKNOWN_SLOTS)
    with ExitStack() as stack:
        first = hold(picker, stack, leisure, hints)
        assert len(set(first)) == 1
        later = hold(picker, stack, 400, hints)
        counts = Counter([*first, *later])
    assert later[0] != first[0]
    assert max(counts.values()) <= math.ceil(BOUND * (len(first) + len(later)) / len(REPLICAS))
    # Below the bound again, it gets its prefix back.
    assert hold(Picker(), ExitStack(), 1, hints) == hold(picker, ExitStack(), 1, hints) == first[:1]


def test_a_prefix_avoids_a_replica_whose_cache_is_full() -> None:
    picker, hints = Picker(), RoutingHints(PREFIXES[0])
    home = picker.pick(REPLICAS, (), hints)
    assert home is not None
    picker.heard(home, b"running=1, waiting=0, slots=64, kv=0.96")
    assert picker.pick(REPLICAS, (), hints) != home
    picker.heard(home, b"running=1, waiting=0, slots=64, kv=0.94")
    assert picker.pick(REPLICAS, (), hints) == home


def test_a_conversation_stays_where_its_longest_part_is() -> None:
    """Both start with the same prefix; one went elsewhere while its replica was full, and its next turn goes there
    too.
    """
    picker = Picker()
    system, one, other = b"s" * 1024, b"1" * 1024, b"2" * 1024
    home = picker.pick(REPLICAS, (), RoutingHints(prefix_blocks(b"", system + one)))
    assert home is not None
    moved = picker.pick(REPLICAS, {home.id}, RoutingHints(prefix_blocks(b"", system + other)))
    assert moved is not None
    assert moved != home
    assert picker.pick(REPLICAS, (), RoutingHints(prefix_blocks(b"", system + other + b"more" * 512))) == moved
    assert picker.pick(REPLICAS, (), RoutingHints(prefix_blocks(b"", system + one + b"more" * 512))) == home
    assert picker.pick(REPLICAS, (), RoutingHints(prefix_blocks(b"", system + b"x" * 1024))) in (home, moved)


def test_a_replica_that_goes_moves_its_share_and_no_other() -> None:
    hints = [RoutingHints(prefix_blocks(b"", bytes([n % 256, n // 256]) * 512)) for n in range(2000)]

    def homes(replicas: list[Replica]) -> list[Replica | None]:
        return [Picker().pick(replicas, (), one) for one in hints]

    before, after = homes(REPLICAS), homes(REPLICAS[:-1])
    moved = [(was, now) for was, now in zip(before, after, strict=True) if was != now]
    assert {was for was, _ in moved} == {REPLICAS[-1]}
    assert len(moved) == before.count(REPLICAS[-1])
    shares = Counter(replica.id for replica in before if replica is not None)
    assert all(share == pytest.approx(500, rel=0.2) for share in shares.values())
    inherited = Counter(now.id for _, now in moved if now is not None)
    assert all(share == pytest.approx(len(moved) / 3, rel=0.3) for share in inherited.values())


def test_a_scorer_more_decides_with_the_others() -> None:
    class Adapters:
        """Scores the last replica, far above any prefix."""

        def scores(self, hints: RoutingHints, replicas: list[Replica]) -> list[float]:
            return [float(replica is REPLICAS[-1]) for replica in replicas]

        def sent(self, hints: RoutingHints, replica: Replica) -> None:
            sent.append(replica)

    sent: list[Replica] = []
    picker = Picker(scorers=[Adapters()])  # type: ignore[list-item]
    assert picker.pick(REPLICAS, (), RoutingHints(PREFIXES[0])) is REPLICAS[-1]
    assert sent == [REPLICAS[-1]]


def test_a_hold_ends_with_an_exception_too() -> None:
    picker = Picker()
    try:
        with picker.hold(REPLICAS[0]):
            raise ValueError
    except ValueError:
        pass
    assert picker.in_flight(REPLICAS[0].id) == 0
