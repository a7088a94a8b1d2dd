"""A disk for a simulated runner: late, wrong or broken, as chance has it, and always the same for the same seed."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from simulated import Contents, SimulatedRunner

from plimsoll_runtime.engine.tiers.store import Done


class SimulatedDisk:
    """A `TierStore` that moves what a simulated runner has in its host slots; nothing happens but in `tick`.

    `faults` is the share of reads and writes that fail; what a failed read leaves in a slot is rubbish.
    """

    def __init__(self, runner: SimulatedRunner, faults: float = 0.0, seed: int = 0) -> None:
        self.files: dict[bytes, Contents] = {}
        self.broken = False
        self.reads_done = 0
        self._runner = runner
        self._faults = faults
        self._random = random.Random(seed)
        self._writes: deque[tuple[int | None, bytes]] = deque()
        self._reads: deque[tuple[int, bytes]] = deque()
        self._done: list[Done] = []

    @property
    def busy(self) -> bool:
        """Whether something is still to be done, or to be told."""
        return bool(self._writes or self._reads or self._done)

    def names(self) -> Sequence[bytes]:
        return list(self.files)

    def write(self, slot: int, name: bytes) -> None:
        self._writes.append((slot, name))

    def read(self, slot: int, name: bytes) -> None:
        self._reads.append((slot, name))

    def delete(self, name: bytes) -> None:
        self._writes.append((None, name))

    def poll(self) -> Sequence[Done]:
        done, self._done = self._done, []
        return done

    def wait(self, seconds: float) -> None:
        self.tick(1)

    def tick(self, count: int) -> None:
        """Do the next `count` things, one way or the other."""
        for _ in range(count):
            if self._writes and (not self._reads or self._random.random() < 0.5):
                self._write(*self._writes.popleft())
            elif self._reads:
                self._read(*self._reads.popleft())

    def give_up(self) -> None:
        """Break: all that is under way fails."""
        self.broken = True
        self._faults = 1.0
        self.tick(len(self._reads) + len(self._writes))

    def _write(self, slot: int | None, name: bytes) -> None:
        if slot is None:
            self.files.pop(name, None)
            return
        ok = self._works()
        if ok:
            self.files[name] = [list(cells) for cells in self._runner.host[slot]]
        self._done.append(Done(slot, ok))

    def _read(self, slot: int, name: bytes) -> None:
        ok = self._works() and name in self.files
        rubbish: Contents = [[b"rubbish"] * self._runner.block_size for _ in self._runner.layers]
        self._runner.host[slot] = [list(cells) for cells in self.files[name]] if ok else rubbish
        self.reads_done += ok
        self._done.append(Done(slot, ok))

    def _works(self) -> bool:
        return self._random.random() >= self._faults
