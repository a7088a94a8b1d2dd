"""Which blocks lie in host memory and on the disk, and what is on its way: names and numbers only.

A block that the device's pool hands out again goes to a frame (host memory for one block), and from there to the disk,
if there is one. It comes back the same way: read into a frame ahead of its step, copied from there by the step that
needs it. A name in the tiers is in one state at a time: *spilling* (it is copied from the device, or a thread writes
it to the disk), *loading* (a thread reads it from the disk) or *stored* (it lies in a frame, on the disk, or in
both).

Frames and places on the disk are pools like the device's own: what is in use stays, what is idle is found by its name
until its turn comes. Nothing here ever waits: where no frame is free, a block is dropped. So a disk that fails, is full
or slow costs cache and nothing else. A device that computes behind the host's back may still copy when a step is over:
until it has, the step's frames are held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from plimsoll_runtime.engine.kv.block_pool import BlockPool
from plimsoll_runtime.engine.kv.offload.base import Done, FrameCopies, TierStore
from plimsoll_runtime.engine.kv.offload.costs import Costs, Prospect


class TierState(Enum):
    """What a name in the tiers is going through."""

    SPILLING = "spilling"
    LOADING = "loading"
    STORED = "stored"


@dataclass(slots=True, eq=False)
class Prefetch:
    """The frames that are held for somebody who waits, and how many of them are still being read."""

    frames: list[int]
    loading: int = 0


@dataclass(slots=True)
class TierCounts:
    """Counters, in blocks: they only grow."""

    spilled: int = 0
    dropped: int = 0
    loaded: int = 0
    failed: int = 0
    passed: int = 0


class _Job(NamedTuple):
    """A read or write that is under way for a frame; `place` is where the name lies on the disk."""

    name: bytes
    place: int
    reads: bool


class _Moved(NamedTuple):
    """Frames that a step that is over has had filled, and such as it has had read."""

    filled: Sequence[int]
    read: Sequence[int]


class TierIndex:
    """Frames 1 .. frames of host memory, places for `disk_blocks` on a disk behind them.

    With `keeps` host memory is a tier of its own. Without, its frames only stand between device and disk: what is on
    the disk already takes none when the device gives it up.

    `copies` says when those of a step are over; None: when the step is.
    """

    def __init__(
        self,
        frames: int,
        disk_blocks: int = 0,
        store: TierStore | None = None,
        *,
        keeps: bool,
        copies: FrameCopies | None = None,
    ) -> None:
        if (store is None) != (disk_blocks == 0):
            raise ValueError("a disk has a store and at least one block, or there is no disk")
        if store is None and not keeps:
            raise ValueError("frames that keep nothing need a disk behind them")
        self._host = BlockPool(frames + 1)
        self._disk = BlockPool(max(disk_blocks, 1) + 1, self._leave_disk)
        self._store = store
        self._keeps = keeps
        self._copies = copies
        self._moved: deque[_Moved] = deque()
        self._steps_over = 0
        self._filling: set[int] = set()
        self._jobs: dict[int, _Job] = {}
        self._waiters: dict[int, list[Prefetch]] = {}
        self._reads = 0
        self.counts = TierCounts()
        self.costs = Costs()
        if store is not None:
            self._take_over(store.names())

    @property
    def frames_total(self) -> int:
        """Frames of host memory."""
        return self._host.total

    @property
    def disk_total(self) -> int:
        """Blocks that the disk may hold; 0 without one."""
        return 0 if self._store is None else self._disk.total

    @property
    def in_flight(self) -> int:
        """Blocks that are being read from the disk or written to it."""
        return len(self._jobs)

    @property
    def frames_used(self) -> int:
        """Frames of host memory that hold a block that can be found."""
        return self._host.named

    @property
    def disk_used(self) -> int:
        """Blocks on the disk that can be found, those included that are being written."""
        return self._disk.named

    def state(self, name: bytes) -> TierState | None:
        """What is known of a name; None when the tiers do not have it."""
        frame = self._host.find(name)
        if frame is None:
            return None if self._disk.find(name) is None else TierState.STORED
        if frame in self._filling:
            return TierState.SPILLING
        job = self._jobs.get(frame)
        if job is None:
            return TierState.STORED
        return TierState.LOADING if job.reads else TierState.SPILLING

    def spill(self, name: bytes) -> int | None:
        """A frame into which the next step is to copy a block before it is overwritten; None to let it go.

        The frame is held until `moved` has said that the step is over, and its copies are.
        """
        if (frame := self._host.find(name)) is not None:
            self._host.touch(frame)
            return None
        place = self._disk.find(name)
        if place is not None:
            self._disk.touch(place)
            if not self._keeps:
                return None
        if not self._host.available:
            self.counts.dropped += 1
            return None
        frame = self._host.take()
        self._host.publish(frame, name)
        self._filling.add(frame)
        self.counts.spilled += 1
        return frame

    def moved(self, filled: Sequence[int], read: Sequence[int]) -> None:
        """A step is over that was to fill some frames, and to read others, which were held for it.

        They are let go of once its copies are over too: what is not on the disk yet is written there then. Steps are
        told in their order, those without such frames left out.
        """
        self._moved.append(_Moved(filled, read))
        self._let_go()

    def find(self, name: bytes) -> int | None:
        """The frame from which the next step can copy a block, or None."""
        frame = self._host.find(name)
        return None if frame is None or self._loads(frame) else frame

    def hold(self, frames: list[int]) -> None:
        """Keep frames as they are until `release`."""
        for frame in frames:
            self._host.share(frame)

    def release(self, frames: list[int]) -> None:
        """What was held is no longer needed."""
        self._host.release(frames)

    def prefetch(self, names: Iterable[bytes]) -> Prefetch | None:
        """Start reading those of a chain of names that are on the disk, up to the first that is not to be had.

        None when nothing has to be waited for. Otherwise the frames are held until `end_prefetch`.
        """
        prefetch = Prefetch([])
        for name in names:
            frame = self._host.find(name)
            if frame is not None:
                self._host.share(frame)
            elif (frame := self._read(name)) is None:
                break
            prefetch.frames.append(frame)
            if self._loads(frame):
                prefetch.loading += 1
                self._waiters.setdefault(frame, []).append(prefetch)
        if prefetch.loading:
            self.costs.went_with()
            return prefetch
        self.release(prefetch.frames)
        return None

    def prospect(self, names: Iterable[bytes]) -> Prospect:
        """What `prefetch` would do with a chain of names: it has something to wait for where anything is gained."""
        ready = gained = reads = 0
        room = self._host.available
        for name in names:
            frame = self._host.find(name)
            if frame is None and (reads >= room or self._disk.find(name) is None):
                break
            if frame is None:
                reads += 1
            else:
                room -= self._host.is_idle(frame)
            if gained or frame is None or self._loads(frame):
                gained += 1
            else:
                ready += 1
        return Prospect(ready, gained, self._reads + reads)

    def pass_over(self, prospect: Prospect) -> None:
        """What could have been read for somebody is computed."""
        self.counts.passed += prospect.gained
        self.costs.went_without()

    def end_prefetch(self, prefetch: Prefetch) -> None:
        """Whoever waited goes on, or does not want it any longer."""
        if prefetch.loading:
            for frame in prefetch.frames:
                if prefetch in self._waiters.get(frame, ()):
                    self._waiters[frame].remove(prefetch)
        self.release(prefetch.frames)

    def poll(self) -> None:
        """Take over what has been copied, read and written. A prefetch whose `loading` is 0 then is over."""
        if self._moved:
            self._let_go()
        if self._store is None:
            return
        for done in self._store.poll():
            self._settle(done)
        if self._store.broken:
            for name in self._disk.names():
                self._disk.forget(self._place(name))

    def wait(self, seconds: float) -> None:
        """Return once something has been read or written, or after so many seconds."""
        if self._jobs and self._store is not None:
            self._store.wait(seconds)

    def forget(self, name: bytes) -> None:
        """Make a name unfindable in all tiers, by the next engine too.

        Of a disk that was given up nothing is known any longer, but its files are still there.
        """
        frame, place = self._host.find(name), self._disk.find(name)
        if frame is not None:
            self._host.forget(frame)
        if place is not None:
            self._disk.forget(place)
        if place is not None or (self._store is not None and self._store.broken):
            self._delete(name)

    def forget_all(self) -> None:
        """Make every name unfindable, by the next engine too."""
        self._host.forget_all()
        self._disk.forget_all()
        if self._store is not None:
            self._store.clear()

    def _take_over(self, names: Iterable[bytes]) -> None:
        """Count what an earlier run left; what is too much for this one's size is deleted, oldest first."""
        for name in names:
            place = self._disk.take()
            self._disk.publish(place, name)
            self._disk.release([place])

    def _let_go(self) -> None:
        """Of the frames of steps that are over, as far as their copies are."""
        over = len(self._moved) if self._copies is None else self._copies.steps_over - self._steps_over
        for _ in range(min(over, len(self._moved))):
            filled, read = self._moved.popleft()
            self._steps_over += 1
            for frame in filled:
                self._filling.remove(frame)
                name = self._host.name_of(frame)
                if name is None or not self._write(frame, name):
                    self._host.release([frame])
            self._host.release(read)

    def _write(self, frame: int, name: bytes) -> bool:
        """Hand a frame to the disk's thread, unless the name is there or nothing can be given up for it."""
        store, disk = self._store, self._disk
        if store is None or store.broken or disk.find(name) is not None or not disk.available:
            return False
        place = disk.take()
        disk.publish(place, name)
        self._jobs[frame] = _Job(name, place, reads=False)
        store.write(frame, name)
        return True

    def _read(self, name: bytes) -> int | None:
        """Begin to read a name into a frame, which is held by the job and for the caller."""
        place = self._disk.find(name)
        if self._store is None or place is None or not self._host.available:
            return None
        frame = self._host.take()
        self._host.publish(frame, name)
        self._host.share(frame)
        self._disk.share(place)
        self._jobs[frame] = _Job(name, place, reads=True)
        self._reads += 1
        self._store.read(frame, name)
        return frame

    def _settle(self, done: Done) -> None:
        frame, ok, ns = done
        job = self._jobs.pop(frame)
        if job.reads:
            self._reads -= 1
            self.costs.learn_read(ns, ok=ok)
        known = self._disk.name_of(job.place) == job.name
        if not ok:
            self.counts.failed += 1
            if known:
                self._disk.forget(job.place)
                self._delete(job.name)
            if job.reads:
                self._host.forget(frame)
        elif job.reads:
            self.counts.loaded += 1
        elif not known and self._disk.find(job.name) is None:
            self._delete(job.name)
        self._disk.release([job.place])
        self._host.release([frame])
        for prefetch in self._waiters.pop(frame, ()):
            prefetch.loading -= 1

    def _loads(self, frame: int) -> bool:
        job = self._jobs.get(frame)
        return job is not None and job.reads

    def _leave_disk(self, place: int, name: bytes) -> None:
        self._delete(name)

    def _delete(self, name: bytes) -> None:
        if self._store is not None:
            self._store.delete(name)

    def _place(self, name: bytes) -> int:
        place = self._disk.find(name)
        assert place is not None
        return place

    def check_integrity(self, held: Iterable[int] = ()) -> None:
        """Raises AssertionError where a frame or place is leaked, or in two states; `held` as often as it is held.

        Those that are held for copies of steps that are over are known here.
        """
        self._host.check_integrity()
        self._disk.check_integrity()
        assert not self._filling & self._jobs.keys(), "a frame is filled and read or written at once"
        assert self._reads == sum(job.reads for job in self._jobs.values()), "reads are miscounted"
        assert self._copies is not None or not self._moved, "frames are held for copies that are over"
        filled = [frame for moved in self._moved for frame in moved.filled]
        assert len(set(filled)) == len(filled), "two steps fill a frame"
        assert self._filling.issuperset(filled), "a frame that is filled is not held for that"
        holders = [*self._filling, *self._jobs, *held, *(frame for moved in self._moved for frame in moved.read)]
        for frame in range(1, self._host.total + 1):
            references = self._host.references(frame)
            assert references == holders.count(frame), (
                f"frame {frame}: {references} holders, {holders.count(frame)} known"
            )
        places = [job.place for job in self._jobs.values()]
        assert sorted(places) == sorted(set(places)), "a place on the disk is read and written at once"
        for place in range(1, self._disk.total + 1):
            assert self._disk.references(place) == places.count(place), f"place {place} is leaked"
        for frame, prefetches in self._waiters.items():
            assert not prefetches or self._loads(frame), f"somebody waits for frame {frame}, which is not being read"
