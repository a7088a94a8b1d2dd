"""Grants never exceed the line, and the ledgers equal a plain list of grants and releases."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from plimsoll_runtime.residency.ledger import DeviceLedger, Grant, LedgerError, Memory, SleeperLedger
from plimsoll_runtime.residency.spec import ModelName

NAMES = [ModelName("team", letter) for letter in "abcd"]
sizes = st.integers(0, 60)
grants = st.builds(Grant, weights=sizes, workspace=sizes, kv=sizes)


def granted(memory: Memory) -> int:
    """Return the grants of all models, without reserved memory."""
    return memory.device.used - memory.device.reserved


class Books(RuleBasedStateMachine):
    """The reference: two dictionaries, from which the free memory is computed each time."""

    @initialize(line=st.integers(0, 200), room=st.integers(0, 120), shared=st.booleans())
    def begin(self, line: int, room: int, shared: bool) -> None:
        self.memory = Memory(DeviceLedger(250, line), SleeperLedger(room), shared=shared)
        self.line, self.room, self.shared = line, room, shared
        self.awake: dict[ModelName, tuple[int, int, int]] = {}
        self.asleep: dict[ModelName, int] = {}
        self.own = 0

    def left(self) -> int:
        return self.line - self.own - sum(map(sum, self.awake.values()))

    @rule(size=st.integers(0, 250))
    def the_runtime_is_measured(self, size: int) -> None:
        self.memory.device.reserve(size)
        self.own = size

    @rule(name=st.sampled_from(NAMES), grant=grants, image=sizes)
    def wakes(self, name: ModelName, grant: Grant, image: int) -> None:
        parts = (grant.weights, grant.workspace, grant.kv)
        if name in self.awake or sum(parts) > self.left():
            with pytest.raises(LedgerError):
                self.memory.wake(name, grant, image)
            return
        kept = self.memory.wake(name, grant, image)
        self.awake[name] = parts
        if self.shared:
            assert kept
            self.asleep.pop(name, None)
        elif name not in self.asleep and image <= self.room - sum(self.asleep.values()):
            assert kept
            self.asleep[name] = image
        else:
            assert kept is (name in self.asleep)

    @rule(name=st.sampled_from(NAMES), image=sizes)
    def sleeps(self, name: ModelName, image: int) -> None:
        if name not in self.awake:
            with pytest.raises(LedgerError):
                self.memory.release(name)
            return
        self.memory.release(name)
        stays = self.memory.keep(name, image)
        del self.awake[name]
        if not self.shared and image == 0:
            self.asleep.pop(name, None)
        if self.shared and image and image <= self.room - sum(self.asleep.values()):
            self.asleep[name] = image
        assert stays is (name in self.asleep)

    @rule(name=st.sampled_from(NAMES), grant=grants)
    def is_granted_something_else(self, name: ModelName, grant: Grant) -> None:
        more = grant.total - sum(self.awake.get(name, ()))
        if name not in self.awake or (more > 0 and more > self.left()):
            with pytest.raises(LedgerError):
                self.memory.device.change(name, grant)
            return
        self.memory.device.change(name, grant)
        self.awake[name] = (grant.weights, grant.workspace, grant.kv)

    @precondition(lambda self: bool(self.asleep))
    @rule(size=sizes, data=st.data())
    def an_image_is_measured(self, size: int, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.asleep)))
        if size > self.room - sum(self.asleep.values()) + self.asleep[name]:
            with pytest.raises(LedgerError):
                self.memory.sleepers.change(name, size)
            return
        self.memory.sleepers.change(name, size)
        self.asleep[name] = size

    @rule(name=st.sampled_from(NAMES))
    def an_image_is_dropped(self, name: ModelName) -> None:
        if name not in self.asleep:
            with pytest.raises(LedgerError):
                self.memory.sleepers.take(name)
            return
        assert self.memory.sleepers.take(name) == self.asleep.pop(name)

    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "memory"):
            return
        self.memory.check_integrity()
        assert granted(self.memory) == sum(map(sum, self.awake.values())) <= self.line
        assert self.memory.device.free == self.left()
        assert dict(self.memory.sleepers.entries) == self.asleep
        assert self.memory.sleepers.free == self.room - sum(self.asleep.values()) >= 0


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_refusal_has_the_numbers() -> None:
    ledger = DeviceLedger(2 * 2**30, 2**30)
    with pytest.raises(LedgerError, match=r"cannot give team/a 1\.50 GiB more: 1\.00 GiB of 1\.00 GiB are free"):
        ledger.put(NAMES[0], Grant(2**30, 2**29, 0))


def test_a_runtime_that_has_grown_over_the_line_stops_grants_and_breaks_nothing() -> None:
    ledger = DeviceLedger(100, 90)
    ledger.put(NAMES[0], Grant(50, 0, 10))
    ledger.reserve(40)
    ledger.check_integrity()
    assert ledger.free == -10
    ledger.change(NAMES[0], Grant(50, 0, 5))
    with pytest.raises(LedgerError):
        ledger.put(NAMES[1], Grant(0, 0, 1))


@pytest.mark.parametrize(("capacity", "line"), [(10, 11), (10, -1)])
def test_a_line_lies_within_the_capacity(capacity: int, line: int) -> None:
    with pytest.raises(ValueError, match=r"line|limit"):
        DeviceLedger(capacity, line)


def test_nothing_is_granted_below_zero() -> None:
    with pytest.raises(ValueError, match="negative"):
        Grant(1, -1, 0)
    with pytest.raises(LedgerError):
        SleeperLedger(10).put(NAMES[0], -1)


def test_no_entry_becomes_negative() -> None:
    sleepers = SleeperLedger(10)
    sleepers.put(ModelName("a", "b"), 4)
    with pytest.raises(LedgerError):
        sleepers.change(ModelName("a", "b"), -1)
    assert sleepers.free == 6
