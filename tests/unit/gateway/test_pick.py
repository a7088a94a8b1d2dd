from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plimsoll_gateway.pick import SUSPECT_SECONDS, Picker
from plimsoll_gateway.table import Replica

REPLICAS = [Replica(str(index), f"http://{index}", True) for index in range(4)]


class PickerMachine(RuleBasedStateMachine):
    """Holds and releases at random; the picker must agree with a plain count."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.picker = Picker(clock=lambda: self.now)
        self.held: list[tuple[Replica, ExitStack]] = []
        self.suspects: dict[str, float] = {}

    @rule(avoid=st.sets(st.sampled_from([r.id for r in REPLICAS])), among=st.sets(st.sampled_from(REPLICAS)))
    def pick_and_hold(self, avoid: set[str], among: set[Replica]) -> None:
        picked = self.picker.pick(sorted(among, key=lambda r: r.id), avoid)
        allowed = [replica for replica in among if replica.id not in avoid]
        trusted = [replica for replica in allowed if self.suspects.get(replica.id, 0) <= self.now] or allowed
        if picked is None:
            assert not allowed
            return
        assert picked in trusted
        counts = Counter(replica.id for replica, _ in self.held)
        assert counts[picked.id] == min(counts[replica.id] for replica in trusted)
        stack = ExitStack()
        stack.enter_context(self.picker.hold(picked))
        self.held.append((picked, stack))

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
    def answer(self, replica: Replica) -> None:
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


TestPicker = PickerMachine.TestCase


def test_equals_are_taken_in_turn() -> None:
    picker = Picker()
    picked = Counter(replica.id for replica in (picker.pick(REPLICAS) for _ in range(40)) if replica is not None)
    assert set(picked.values()) == {10}


def test_a_hold_ends_with_an_exception_too() -> None:
    picker = Picker()
    try:
        with picker.hold(REPLICAS[0]):
            raise ValueError
    except ValueError:
        pass
    assert picker.in_flight(REPLICAS[0].id) == 0
