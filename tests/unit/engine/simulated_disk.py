"""A disk that acts only when told to: late, wrong or broken, as a test or chance decides."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Generic, NamedTuple, TypeVar

from simulated import Contents, SimulatedRunner

from plimsoll_runtime.engine.kv.offload.base import Done

T = TypeVar("T")


class _Write(NamedTuple, Generic[T]):
    """The contents of a frame to write. Without a frame, a name is deleted; without a name, everything."""

    frame: int | None
    name: bytes | None
    contents: T | None


class SimulatedDisk(Generic[T]):
    """A `TierStore` between `frames` and files; it acts only in `do_write`, `do_read` and `tick`.

    `faults` is the share of operations in `tick` that fail. A failed read leaves `rubbish` in its frame. Reads of
    missing or rotten files fail too, as checksums would detect. Each read reports `read_ns`.
    """

    def __init__(
        self,
        frames: dict[int, T],
        rubbish: Callable[[], T],
        left: Sequence[tuple[bytes, T]] = (),
        faults: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.files: dict[bytes, T] = dict(left)
        self.rotten: set[bytes] = set()
        self.frames = frames
        self.writes: deque[_Write[T]] = deque()
        self.reads: list[tuple[int, bytes]] = []
        self.broken = False
        self.reads_done = 0
        self.read_ns = 0
        self._rubbish = rubbish
        self._faults = faults
        self._random = random.Random(seed)
        self._done: list[Done] = []

    @property
    def busy(self) -> bool:
        """Whether operations or results are pending."""
        return bool(self.writes or self.reads or self._done)

    def names(self) -> Sequence[bytes]:
        return list(self.files)

    def write(self, frame: int, name: bytes) -> None:
        assert not self.broken, "a broken disk is asked to write"
        self.writes.append(_Write(frame, name, deepcopy(self.frames[frame])))

    def read(self, frame: int, name: bytes) -> None:
        self.reads.append((frame, name))

    def delete(self, name: bytes) -> None:
        self.writes.append(_Write(None, name, None))

    def clear(self) -> None:
        self.writes.append(_Write(None, None, None))

    def poll(self) -> Sequence[Done]:
        done, self._done = self._done, []
        return done

    def wait(self, seconds: float) -> None:
        self.tick(1)

    def tick(self, count: int) -> None:
        """Do the next `count` operations, with or without success."""
        for _ in range(count):
            if self.writes and (not self.reads or self._random.random() < 0.5):
                self.do_write(self._works())
            elif self.reads:
                self.do_read(0, self._works())

    def give_up(self) -> None:
        """Break: all pending operations fail, except deletes."""
        self.broken = True
        self._faults = 1.0
        self.tick(len(self.reads) + len(self.writes))

    def do_write(self, ok: bool) -> None:
        """Do the oldest write or delete. Only writes fail."""
        frame, name, contents = self.writes.popleft()
        if name is None:
            self.files.clear()
        elif frame is None:
            self.files.pop(name, None)
        else:
            assert self.frames[frame] == contents, "a frame is overwritten while it is written to the disk"
            if ok:
                self.files[name] = deepcopy(self.frames[frame])
                self.rotten.discard(name)
            self._done.append(Done(frame, ok))

    def do_read(self, number: int, ok: bool) -> None:
        """Do a read, counted from the oldest."""
        frame, name = self.reads.pop(number)
        ok = ok and name in self.files and name not in self.rotten
        self.frames[frame] = deepcopy(self.files[name]) if ok else self._rubbish()
        self.reads_done += ok
        self._done.append(Done(frame, ok, self.read_ns))

    def _works(self) -> bool:
        return self._random.random() >= self._faults


def disk_of(runner: SimulatedRunner, faults: float = 0.0, seed: int = 0) -> SimulatedDisk[Contents]:
    """Return a disk for the host frames of a simulated runner."""

    def rubbish() -> Contents:
        return [[b"rubbish"] * runner.block_size for _ in runner.layers]

    return SimulatedDisk(runner.host, rubbish, faults=faults, seed=seed)


def disk_of_names(left: Sequence[bytes] = ()) -> SimulatedDisk[bytes | None]:
    """Return a disk for frames that hold only the name of their contents; rubbish has none."""
    return SimulatedDisk({}, lambda: None, [(name, name) for name in left])
