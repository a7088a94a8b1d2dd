"""The index of the tiers: which blocks are in host memory and on disk, and which are being copied.

A block that is evicted from the device's pool goes to a frame (host memory for one block), and from there to the disk,
if there is one. It comes back the same way: read into a frame ahead of its step, and copied from there by the step that
needs it. A name (a block hash) is in one state at a time: *spilling* (being copied from the device, or being written to
the disk), *loading* (being read from the disk) or *stored* (in a frame, on the disk, or in both).

Frames and disk places are block pools like the device's own: those in use stay, idle ones can be found until they are
reused. Nothing here waits: if no frame is free, a block is dropped. So a failing, full or slow disk only costs cache
hits. An asynchronous device may still copy after a step's result is known; the step's frames are held until its copies
have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from plimsoll_runtime.engine.kv.block_pool import BlockPool
from plimsoll_runtime.engine.kv.offload.base import Done, FrameCopies, TierStore
from plimsoll_runtime.engine.kv.offload.costs import Costs, Prospect


class TierState(Enum):
    """The state of a block in the tiers."""

    SPILLING = "spilling"
    LOADING = "loading"
    STORED = "stored"


@dataclass(slots=True, eq=False)
class Prefetch:
    """The frames held for a waiting sequence, and the number of them that are still being read."""

    frames: list[int]
    loading: int = 0


class TierCounts(msgspec.Struct):
    """Counters, in blocks; `TierStats` explains them."""

    spilled: int = 0
    dropped: int = 0
    loaded: int = 0
    failed: int = 0
    passed: int = 0


class _Job(NamedTuple):
    """A read or write in progress for a frame; `place` is the number of the block's place on the disk."""

    name: bytes
    place: int
    reads: bool


class _Moved(NamedTuple):
    """Frames that a finished step has filled, and frames that it has read."""

    filled: Sequence[int]
    read: Sequence[int]


class TierIndex:
    """Frames 1 .. `frames` of host memory, with `disk_blocks` places on a disk below them.

    With `keeps`, host memory is a tier itself. Without it, frames are only buffers between device and disk, and a block
    that is already on disk takes no frame when it is evicted.

    `copies` reports when a step's copies have ended; None: they end with the step.
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
            raise ValueError("store and disk_blocks go together: pass both or neither")
        if store is None and not keeps:
            raise ValueError("keeps=False needs a disk; pass store and disk_blocks")
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
        """Number of frames of host memory."""
        return self._host.total

    @property
    def disk_total(self) -> int:
        """Most blocks on the disk; 0 without a disk."""
        return 0 if self._store is None else self._disk.total

    @property
    def in_flight(self) -> int:
        """Number of blocks being read from or written to the disk."""
        return len(self._jobs)

    @property
    def frames_used(self) -> int:
        """Number of frames with a block in them, or with one being copied or read into them."""
        return self._host.named

    @property
    def disk_used(self) -> int:
        """Number of blocks on the disk that can be found, including those being written."""
        return self._disk.named

    def state(self, name: bytes) -> TierState | None:
        """Return the state of the block with this hash; None if the tiers do not have it."""
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
        """Return the frame to which the next step copies an evicted block; None if it is not copied, because a tier has
        it already or no frame is free.

        The frame is held until `moved` reports the step and its copies have ended.
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
        """Record that a step has ended which filled some frames and read others that were held for it.

        The frames are released when the step's copies have ended; filled ones are then written to the disk, unless it
        has them. Call it in step order, for steps with such frames only.
        """
        self._moved.append(_Moved(filled, read))
        self._let_go()

    def find(self, name: bytes) -> int | None:
        """Return the frame from which the next step can copy a block, or None."""
        frame = self._host.find(name)
        return None if frame is None or self._loads(frame) else frame

    def hold(self, frames: list[int]) -> None:
        """Hold frames unchanged until `release`."""
        for frame in frames:
            self._host.share(frame)

    def release(self, frames: list[int]) -> None:
        """Release frames that were held."""
        self._host.release(frames)

    def prefetch(self, names: Iterable[bytes]) -> Prefetch | None:
        """Start to read the blocks with these hashes that are on disk, up to the first one that no tier has
        or for which no frame is free.

        Return None if there is no read to wait for. Otherwise the frames are held until `end_prefetch`.
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
        """Predict the result of `prefetch` for these block hashes. If `gained` is 0, there is no read to wait for."""
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
        """Count blocks that a sequence computes although they could have been read."""
        self.counts.passed += prospect.gained
        self.costs.went_without()

    def end_prefetch(self, prefetch: Prefetch) -> None:
        """Release a prefetch whose sequence is admitted or removed."""
        if prefetch.loading:
            for frame in prefetch.frames:
                if prefetch in self._waiters.get(frame, ()):
                    self._waiters[frame].remove(prefetch)
        self.release(prefetch.frames)

    def poll(self) -> None:
        """Process copies, reads and writes that have ended. A prefetch is complete when its `loading` is 0."""
        if self._moved:
            self._let_go()
        if self._store is None:
            return
        for done in self._store.poll():
            self._settle(done)
        if self._store.broken:
            self._disk.forget_all()

    def wait(self, seconds: float) -> None:
        """Wait until a read or write has ended, for at most `seconds`; return immediately if none is in progress."""
        if self._jobs and self._store is not None:
            self._store.wait(seconds)

    def forget(self, name: bytes) -> None:
        """Remove a name from all tiers, also for later engines.

        A broken disk has no entries in the index, but its files still exist, so they are deleted too.
        """
        frame, place = self._host.find(name), self._disk.find(name)
        if frame is not None:
            self._host.forget(frame)
        if place is not None:
            self._disk.forget(place)
        if place is not None or (self._store is not None and self._store.broken):
            self._delete(name)

    def forget_all(self) -> None:
        """Remove every name from all tiers, also for later engines."""
        self._host.forget_all()
        self._disk.forget_all()
        if self._store is not None:
            self._store.clear()

    def _take_over(self, names: Iterable[bytes]) -> None:
        """Index the blocks that an earlier run left. The oldest ones beyond this run's size are deleted."""
        for name in names:
            place = self._disk.take()
            self._disk.publish(place, name)
            self._disk.release([place])

    def _let_go(self) -> None:
        """Release the frames of finished steps whose copies have ended."""
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
        """Queue a frame for writing; return False if the disk has the name already or has no place for it."""
        store, disk = self._store, self._disk
        if store is None or store.broken or disk.find(name) is not None or not disk.available:
            return False
        place = disk.take()
        disk.publish(place, name)
        self._jobs[frame] = _Job(name, place, reads=False)
        store.write(frame, name)
        return True

    def _read(self, name: bytes) -> int | None:
        """Start to read a name into a frame. The job and the caller each hold a reference to the frame."""
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

    def check_integrity(self, held: Iterable[int] = ()) -> None:
        """Raise AssertionError if a frame or place is leaked, or in two states.

        `held` lists frames held by callers, once for each reference. Frames held for copies of finished steps are known
        here.
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
                f"frame {frame}: {references} references, {holders.count(frame)} holders"
            )
        places = [job.place for job in self._jobs.values()]
        assert sorted(places) == sorted(set(places)), "a place on the disk is read and written at once"
        for place in range(1, self._disk.total + 1):
            assert self._disk.references(place) == places.count(place), f"place {place} is leaked"
        for frame, prefetches in self._waiters.items():
            assert not prefetches or self._loads(frame), f"a prefetch waits for frame {frame}, which is not being read"
