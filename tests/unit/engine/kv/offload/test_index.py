"""The tiers with a disk that is slow, fails, returns wrong data and breaks: a found block always has its own
contents.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated_copies import SimulatedCopies
from simulated_disk import SimulatedDisk, disk_of_names

from plimsoll_runtime.engine.kv.offload.costs import Prospect
from plimsoll_runtime.engine.kv.offload.index import Prefetch, TierIndex, TierState

NAMES = [b"%d" % i for i in range(8)]


def copies_of(disk: SimulatedDisk[bytes | None]) -> SimulatedCopies[bytes | None]:
    """Return copies to and from the frames of a disk that hold names."""
    return SimulatedCopies(disk.frames, lambda: b"not copied yet")


class Tiers(RuleBasedStateMachine):
    """Steps spill and restore, requests prefetch, names are removed, and the disk is late, wrong or broken.

    The device may copy long after a step was committed.
    """

    @initialize(
        frames=st.integers(1, 5),
        places=st.integers(0, 5),
        keeps=st.booleans(),
        left=st.lists(st.sampled_from(NAMES)),
        lags=st.booleans(),
    )
    def start(self, frames: int, places: int, keeps: bool, left: list[bytes], lags: bool) -> None:
        self.disk = disk_of_names(left if places else ())
        self.places = places
        self.copies = copies_of(self.disk)
        self.copies.lags = lags
        self.index = TierIndex(
            frames,
            places,
            self.disk if places else None,
            keeps=keeps or not places,
            copies=self.copies if lags else None,
        )
        self.forgotten: set[bytes] = set()
        self.prefetches: list[Prefetch] = []
        self.steps: deque[tuple[list[int], list[tuple[int, bytes]]]] = deque()

    @rule(names=st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    def plan_spills(self, names: list[bytes]) -> None:
        filled: dict[int, bytes | None] = {}
        for name in names:
            before = self.index.state(name)
            frame = self.index.spill(name)
            if frame is not None:
                filled[frame] = name
                self.forgotten.discard(name)
                assert self.index.state(name) is TierState.SPILLING
            elif before is None:
                assert self.index.state(name) is None, "it was dropped"
        self._launch(filled, [])

    @rule(names=st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    def plan_restores(self, names: list[bytes]) -> None:
        found = [(frame, name) for name in names if (frame := self.index.find(name)) is not None]
        self.index.hold([frame for frame, _ in found])
        self._launch({}, found)

    def _launch(self, filled: dict[int, bytes | None], read: list[tuple[int, bytes]]) -> None:
        if not filled and not read:
            return
        found = self.copies.launch(filled, [frame for frame, _ in read])
        assert found == dict(read), "a restored block has another block's contents"
        self.steps.append((list(filled), read))

    @precondition(lambda self: self.steps)
    @rule()
    def commit(self) -> None:
        filled, read = self.steps.popleft()
        self.index.moved(filled, [frame for frame, _ in read])

    @precondition(lambda self: self.copies.under_way)
    @rule(count=st.integers(1, 3))
    def copies_pass(self, count: int) -> None:
        self.copies.pass_steps(count)

    @rule(names=st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=4))
    def prefetch(self, names: list[bytes]) -> None:
        known = [self.index.state(name) for name in names]
        prospect = self.index.prospect(names)
        prefetch = self.index.prefetch(names)
        if prefetch is not None:
            assert known[0] is not None
            self.prefetches.append(prefetch)
        assert (prefetch is not None) == (prospect.gained > 0)
        assert prospect.ready + prospect.gained <= len(names)

    @precondition(lambda self: self.prefetches)
    @rule(data=st.data())
    def end_prefetch(self, data: st.DataObject) -> None:
        """Also before everything is read, because a waiting sequence may be aborted."""
        prefetch = self.prefetches.pop(data.draw(st.integers(0, len(self.prefetches) - 1)))
        self.index.end_prefetch(prefetch)

    @precondition(lambda self: self.disk.writes)
    @rule(ok=st.booleans())
    def disk_writes(self, ok: bool) -> None:
        self.disk.do_write(ok)

    @precondition(lambda self: self.disk.reads)
    @rule(data=st.data(), ok=st.sampled_from([True, True, False]))
    def disk_reads(self, data: st.DataObject, ok: bool) -> None:
        self.disk.do_read(data.draw(st.integers(0, len(self.disk.reads) - 1)), ok)

    @precondition(lambda self: self.disk.files)
    @rule(data=st.data())
    def disk_rots(self, data: st.DataObject) -> None:
        self.disk.rotten.add(data.draw(st.sampled_from(sorted(self.disk.files))))

    @rule()
    def poll(self) -> None:
        self.index.poll()

    @rule(name=st.sampled_from(NAMES))
    def forget(self, name: bytes) -> None:
        self.index.forget(name)
        assert self.index.state(name) is None
        self.forgotten.add(name)

    @rule()
    def forget_all(self) -> None:
        self.index.forget_all()
        assert [self.index.state(name) for name in NAMES] == [None] * len(NAMES)
        self.forgotten.update(NAMES)

    @precondition(lambda self: self.places and not self.disk.broken)
    @rule(really=st.sampled_from([False] * 9 + [True]))
    def disk_breaks(self, really: bool) -> None:
        if really:
            self.disk.give_up()
            self.index.poll()
            assert self.index.disk_used == 0

    @invariant()
    def records_agree(self) -> None:
        if not hasattr(self, "index"):
            return
        restored = [frame for _, frames in self.steps for frame, _ in frames]
        self.index.check_integrity([*restored, *(frame for prefetch in self.prefetches for frame in prefetch.frames)])
        assert self.index.disk_used <= self.places

    def teardown(self) -> None:
        """In the end nothing is held, and the disk has exactly what the index says."""
        if not hasattr(self, "index"):
            return
        while self.steps:
            self.commit()
        self.copies.pass_steps(self.copies.under_way)
        self.index.poll()
        while self.disk.busy:
            while self.disk.writes:
                self.disk.do_write(True)
            while self.disk.reads:
                self.disk.do_read(0, True)
            self.index.poll()
        assert all(prefetch.loading == 0 for prefetch in self.prefetches), "somebody waits for ever"
        for prefetch in self.prefetches:
            self.index.end_prefetch(prefetch)
        self.index.check_integrity()
        assert self.index.frames_used <= self.index.frames_total
        assert not self.forgotten & self.disk.files.keys(), "the next engine would find a forgotten block"
        if not self.disk.broken:
            assert len(self.disk.files) == self.index.disk_used
            assert all(self.index.state(name) is TierState.STORED for name in self.disk.files)


TestTiers = Tiers.TestCase
TestTiers.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def spilled(index: TierIndex, disk: SimulatedDisk[bytes | None], name: bytes) -> int:
    """Spill a name in a step that ends."""
    frame = index.spill(name)
    assert frame is not None
    disk.frames[frame] = name
    index.moved([frame], [])
    return frame


def test_what_leaves_the_device_is_written_and_read_again() -> None:
    disk = disk_of_names()
    index = TierIndex(1, 4, disk, keeps=False)
    spilled(index, disk, b"a")
    assert index.state(b"a") is TierState.SPILLING
    assert index.spill(b"b") is None, "the only frame is being written: the block is dropped"
    disk.do_write(ok=True)
    index.poll()
    spilled(index, disk, b"c")
    disk.do_write(ok=True)
    index.poll()
    assert index.find(b"a") is None, "its frame was used again"
    prefetch = index.prefetch([b"a", b"c"])
    assert prefetch is not None
    assert len(prefetch.frames) == 1, "one frame, so one block at a time"
    assert (index.state(b"a"), index.state(b"c")) == (TierState.LOADING, TierState.STORED)
    assert index.find(b"a") is None, "it is not there yet"
    disk.do_read(0, ok=True)
    index.poll()
    assert prefetch.loading == 0
    assert index.find(b"a") == prefetch.frames[0]
    assert (index.counts.spilled, index.counts.dropped, index.counts.loaded) == (2, 1, 1)


def test_frames_are_the_steps_until_its_copies_are_over() -> None:
    """A filled frame is not written to disk before, and a read one is not reused."""
    disk = disk_of_names()
    copies = copies_of(disk)
    copies.lags = True
    index = TierIndex(2, 4, disk, keeps=False, copies=copies)
    first = index.spill(b"a")
    assert first is not None
    copies.launch({first: b"a"}, [])
    index.moved([first], [])
    assert index.find(b"a") == first, "a later copy finds what this one leaves"
    index.hold([first])
    copies.launch({}, [first])
    index.moved([], [first])
    index.poll()
    index.check_integrity()
    assert not disk.writes
    assert index.state(b"a") is TierState.SPILLING
    copies.pass_steps(1)
    index.poll()
    index.check_integrity()
    assert [write[:2] for write in disk.writes] == [(first, b"a")]
    disk.do_write(ok=True)
    index.poll()
    assert index.spill(b"b") is not None
    assert index.spill(b"c") is None, "a frame is read, the other one filled"
    copies.pass_steps(1)
    index.poll()
    index.check_integrity()
    assert index.spill(b"c") == first


def test_a_step_whose_copies_are_over_early_keeps_its_frames_until_it_is() -> None:
    disk = disk_of_names()
    copies = copies_of(disk)
    index = TierIndex(1, 4, disk, keeps=False, copies=copies)
    frame = index.spill(b"a")
    assert frame is not None
    copies.launch({frame: b"a"}, [])
    index.poll()
    assert not disk.writes
    index.moved([frame], [])
    assert len(disk.writes) == 1


def test_what_is_on_the_disk_is_not_written_twice() -> None:
    disk = disk_of_names([b"a"])
    index = TierIndex(2, 4, disk, keeps=False)
    assert index.spill(b"a") is None
    kept = TierIndex(2, 4, disk, keeps=True)
    spilled(kept, disk, b"a")
    assert not disk.writes
    assert kept.find(b"a") is not None, "host memory is faster than the disk"


def test_the_disk_gives_up_what_was_asked_for_longest_ago() -> None:
    disk = disk_of_names([b"old", b"asked", b"new"])
    index = TierIndex(2, 3, disk, keeps=False)
    index.prefetch([b"old"])
    disk.do_read(0, ok=True)
    index.poll()
    spilled(index, disk, b"x")
    assert [write[:2] for write in disk.writes] == [(None, b"asked"), (2, b"x")]


def test_a_smaller_disk_than_the_last_time_keeps_the_newest() -> None:
    disk = disk_of_names([b"old", b"new"])
    index = TierIndex(1, 1, disk, keeps=False)
    assert (index.state(b"old"), index.state(b"new")) == (None, TierState.STORED)
    assert [write[:2] for write in disk.writes] == [(None, b"old")]


def test_two_who_want_the_same_wait_for_one_read() -> None:
    disk = disk_of_names([b"a"])
    index = TierIndex(2, 2, disk, keeps=False)
    first, second = index.prefetch([b"a"]), index.prefetch([b"a"])
    assert first is not None
    assert second is not None
    assert len(disk.reads) == 1
    index.end_prefetch(first)
    disk.do_read(0, ok=True)
    index.poll()
    assert second.loading == 0


def test_a_prospect_tells_what_is_there_what_is_gained_and_what_is_read_before() -> None:
    disk = disk_of_names([b"a", b"b", b"c", b"x"])
    index = TierIndex(4, 4, disk, keeps=False)
    assert index.prospect([b"a", b"b", b"c"]) == Prospect(ready=0, gained=3, awaited=3)
    assert index.prospect([b"new", b"a"]) == Prospect(ready=0, gained=0, awaited=0)
    index.prefetch([b"a"])
    disk.do_read(0, ok=True)
    index.poll()
    index.prefetch([b"x"])
    assert index.prospect([b"a", b"b", b"c", b"new"]) == Prospect(ready=1, gained=2, awaited=3)
    assert index.prospect([b"a"]) == Prospect(ready=1, gained=0, awaited=1)
    assert index.prospect([b"x", b"a"]) == Prospect(ready=0, gained=2, awaited=1), "another prefetch is reading it"
    index.prefetch([b"b", b"c"])
    assert index.prospect([b"a", b"new"]) == Prospect(ready=1, gained=0, awaited=3)


def test_a_tier_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a disk"):
        TierIndex(1, keeps=False)
    with pytest.raises(ValueError, match="pass both or neither"):
        TierIndex(1, 0, disk_of_names(), keeps=True)


def test_what_is_forgotten_once_the_disk_was_given_up_is_deleted() -> None:
    disk = disk_of_names([b"a", b"b", b"c"])
    index = TierIndex(2, 4, disk, keeps=False)
    disk.give_up()
    index.poll()
    assert index.disk_used == 0, "nothing is read from it any longer"
    index.forget(b"a")
    disk.do_write(ok=True)
    assert sorted(disk.files) == [b"b", b"c"]
    index.forget_all()
    disk.do_write(ok=True)
    assert disk.files == {}
