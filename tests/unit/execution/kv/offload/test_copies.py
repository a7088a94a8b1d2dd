"""Steps, parallel copies and a disk, each at its own speed: nothing is read before it is written or after it is
freed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, MutableMapping

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kernel_support.late_streams import LateStreams
from simulated_disk import SimulatedDisk
from torch import Tensor

from plimsoll_runtime.engine.kv.offload.index import Prefetch, TierIndex
from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.copies import StepCopies
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks
from plimsoll_runtime.execution.runners.base import copy_blocks
from plimsoll_runtime.models.spec.attention import AttentionShape

BLOCKS = 8
USED = list(range(1, BLOCKS))


class Frames(MutableMapping[int, bytes]):
    """The bytes of frames, for a disk."""

    def __init__(self, host: HostBlocks) -> None:
        self._host = host

    def __getitem__(self, frame: int) -> bytes:
        return bytes(self._host.row(frame))

    def __setitem__(self, frame: int, contents: bytes) -> None:
        self._host.row(frame)[:] = contents

    def __delitem__(self, frame: int) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, self._host.frames + 1))

    def __len__(self) -> int:
        return self._host.frames


class Device(RuleBasedStateMachine):
    """Each step overwrites blocks whose contents it spills, restores others, and reads some.

    `last_use` is the last step that reads or writes a block. Steps are launched far ahead of the device and committed
    in between; spilled blocks are written to the disk and read back from it.
    """

    @initialize(frames=st.integers(1, 6), places=st.sampled_from([0, 2, 20]), keeps=st.booleans())
    def start(self, frames: int, places: int, keeps: bool) -> None:
        self.cache = KvCache([AttentionShape(1, 1, 2, 1.0)], BLOCKS, 1, torch.float32, torch.device("cpu"))
        self.streams = LateStreams()
        self.host = HostBlocks(self.cache, frames, streams=self.streams)
        self.disk: SimulatedDisk[bytes] = SimulatedDisk(
            Frames(self.host),  # type: ignore[arg-type]
            lambda: b"\xff" * self.cache.block_bytes,
        )
        assert self.host.copies is not None
        self.copies: StepCopies = self.host.copies
        store = self.disk if places else None
        self.index = TierIndex(frames, places, store, keeps=keeps or not places, copies=self.copies)
        self.names: dict[int, bytes] = {}
        self.last_use = dict.fromkeys(USED, 0)
        self.step = 0
        self.count = 0
        self.known: list[bytes] = []
        self.under_way: deque[tuple[list[int], list[int]]] = deque()
        self.prefetches: list[Prefetch] = []

    @rule(
        given_up=st.lists(st.sampled_from(USED), unique=True, max_size=5),
        wanted=st.lists(st.integers(0, 30), max_size=4),
        read=st.lists(st.sampled_from(USED), max_size=4),
        haste=st.integers(0, 4),
        copied=st.booleans(),
    )
    def launch(self, given_up: list[int], wanted: list[int], read: list[int], haste: int, copied: bool) -> None:
        self.step += 1
        spills, restores = [], []
        for block in given_up:
            name = self.names.pop(block, None)
            if name is not None and (frame := self.index.spill(name)) is not None:
                spills.append((block, frame))
        free = deque(given_up)
        for number in wanted:
            name = self.known[number % len(self.known)] if self.known else b""
            frame = self.index.find(name)
            if free and frame is not None and name not in self.names.values():
                self.index.hold([frame])
                self.names[free[0]] = name
                restores.append((frame, free.popleft()))
        moved = [block for block, _ in spills] + [block for _, block in restores]
        idle = max(0, self.step - 1 - max((self.last_use[block] for block in moved), default=0))
        copies = [(self._there(read[0]), free.popleft())] if copied and read and free and self._there(read[0]) else []
        plan = StepPlan((), (), (), (), spills, restores, idle_steps=min(idle, haste))
        copy_blocks(plan, self.cache, self.host)
        for source, target in copies:
            self._compute_copy(source, target)
        written = {block: self._fresh_name() for block in free}
        for block in read:
            if block in self.names:
                self._compute_read(block, self.names[block])
        for block, name in written.items():
            self._compute_write(block, name)
        self.names |= written
        if spills or restores:
            self.under_way.append(([frame for _, frame in spills], [frame for frame, _ in restores]))

    def _there(self, block: int) -> int:
        """Return a block that has contents, or 0."""
        return block if block in self.names else 0

    def _fresh_name(self) -> bytes:
        self.count += 1
        self.known.append(b"%d" % self.count)
        return self.known[-1]

    def _compute_copy(self, source: int, target: int) -> None:
        """Copy within the cache; the source is not used afterwards."""
        contents = contents_of(self.names[source])
        self.last_use[source] = self.last_use[target] = self.step

        def copy() -> None:
            assert torch.equal(self.cache.blocks(source, 1)[0], contents), "a block is copied that is not there"
            self.cache.blocks(target, 1).copy_(self.cache.blocks(source, 1))

        self.streams.launch(copy)

    def _compute_read(self, block: int, name: bytes) -> None:
        self.last_use[block] = self.step

        def read() -> None:
            assert torch.equal(self.cache.blocks(block, 1)[0], contents_of(name)), "a step reads a block too early"

        self.streams.launch(read)

    def _compute_write(self, block: int, name: bytes) -> None:
        self.last_use[block] = self.step

        def write() -> None:
            self.cache.blocks(block, 1)[0] = contents_of(name)

        self.streams.launch(write)

    @precondition(lambda self: self.streams.compute)
    @rule(count=st.integers(1, 12))
    def device_computes(self, count: int) -> None:
        while count and self.streams.go_on(self.streams.compute):
            count -= 1

    @precondition(lambda self: self.streams.copies)
    @rule(count=st.integers(1, 6))
    def device_copies(self, count: int) -> None:
        while count and self.streams.go_on(self.streams.copies):
            count -= 1

    @precondition(lambda self: self.under_way)
    @rule()
    def commit(self) -> None:
        self.index.moved(*self.under_way.popleft())

    @rule()
    def poll(self) -> None:
        self.index.poll()

    @precondition(lambda self: self.known)
    @rule(numbers=st.lists(st.integers(0, 30), min_size=1, max_size=3, unique=True))
    def prefetch(self, numbers: list[int]) -> None:
        names = dict.fromkeys(self.known[number % len(self.known)] for number in numbers)
        prefetch = self.index.prefetch(names)
        if prefetch is not None:
            self.prefetches.append(prefetch)

    @precondition(lambda self: self.prefetches)
    @rule()
    def end_prefetch(self) -> None:
        self.index.end_prefetch(self.prefetches.pop())

    @precondition(lambda self: self.disk.writes)
    @rule()
    def disk_writes(self) -> None:
        self.disk.do_write(ok=True)

    @precondition(lambda self: self.disk.reads)
    @rule(ok=st.sampled_from([True, True, False]))
    def disk_reads(self, ok: bool) -> None:
        self.disk.do_read(0, ok)

    @invariant()
    def records_agree(self) -> None:
        if not hasattr(self, "index"):
            return
        read = [frame for _, frames in self.under_way for frame in frames]
        self.index.check_integrity([*read, *(frame for each in self.prefetches for frame in each.frames)])
        self.copies.check_integrity()
        for name, contents in self.disk.files.items():
            assert contents == contents_of(name).numpy().tobytes(), "the disk has a frame that was not filled yet"

    def teardown(self) -> None:
        """Let the device finish, and check that nothing is held."""
        if not hasattr(self, "index"):
            return
        while self.under_way:
            self.commit()
        self.streams.go_on_to_the_end()
        for block, name in self.names.items():
            assert torch.equal(self.cache.blocks(block, 1)[0], contents_of(name))
        while self.prefetches:
            self.end_prefetch()
        self.index.poll()
        while self.disk.busy:
            self.disk.tick(1)
            self.index.poll()
        self.records_agree()
        self.index.check_integrity()


def contents_of(name: bytes) -> Tensor:
    """Return the contents of the block with a name."""
    return torch.arange(4, dtype=torch.float32) + 10 * int(name)


Device.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestDevice = Device.TestCase


def new_host(frames: int = 8) -> tuple[HostBlocks, StepCopies, LateStreams]:
    cache = KvCache([AttentionShape(1, 1, 2, 1.0)], BLOCKS, 1, torch.float32, torch.device("cpu"))
    streams = LateStreams()
    host = HostBlocks(cache, frames, streams=streams)
    assert host.copies is not None
    return host, host.copies, streams


def test_blocks_that_lie_together_are_copied_at_once() -> None:
    host, _, streams = new_host()
    host.move([(1, 3), (3, 5), (2, 4), (7, 6)], [(4, 1), (5, 2)])
    assert streams.copied_at_once == [1, 3, 2]


@pytest.mark.parametrize(("idle_steps", "begins"), [(0, False), (1, True), (9, True)])
def test_copies_go_on_beside_steps_that_do_not_use_their_blocks(idle_steps: int, begins: bool) -> None:
    host, copies, streams = new_host()
    copies.begin_step()
    streams.go_on(streams.compute)
    streams.launch(lambda: None)
    copies.begin_step()
    host.move([(1, 1)], idle_steps=idle_steps)
    assert streams.go_on(streams.copies) == begins
    streams.go_on_to_the_end()
    assert copies.steps_over == 1


def test_marks_are_used_again_once_they_are_passed() -> None:
    host, copies, streams = new_host()
    for count in range(1, 5):
        copies.begin_step()
        host.move([(1, 1)])
        streams.go_on_to_the_end()
        assert copies.steps_over == count
        copies.check_integrity()
    assert len(copies._passed) == 1


@pytest.mark.gpu
def test_a_gpu_is_told_and_not_waited_for() -> None:
    """The device stops before it writes the block to spill: the host continues without a wait."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    cache = KvCache([AttentionShape(8, 8, 128, 1.0)], 65, 16, torch.bfloat16, torch.device("cuda"))
    host = HostBlocks(cache, 32)
    copies = host.copies
    assert copies is not None
    numbers = torch.arange(1.0, 33.0, device="cuda")
    torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]
    cache.blocks(1, 32).copy_(numbers.view(32, 1).expand_as(cache.blocks(1, 32)))
    spills = [(block, 33 - block) for block in range(1, 33)]
    copy_blocks(StepPlan((), spills=spills), cache, host)
    cache.blocks(1, 32).fill_(torch.nan)
    copy_blocks(StepPlan((), restores=[(frame, 32 + block) for block, frame in spills]), cache, host)
    seen = cache.blocks(33, 32).clone()
    assert copies.steps_over == 0
    torch.cuda.synchronize()
    assert copies.steps_over == 2
    assert torch.equal(seen[:, 0].float(), numbers)
    assert torch.equal(seen[:, -1].float(), numbers)
    assert cache.blocks(1, 32).isnan().all()


class Gone:
    """A mark of a device that has failed."""

    def query(self) -> bool:
        raise RuntimeError("CUDA error: unspecified launch failure")


def test_on_a_device_that_has_failed_nothing_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    host, copies, streams = new_host()
    monkeypatch.setattr(streams, "mark", Gone)
    monkeypatch.setattr(streams, "copied", lambda mark: None)
    monkeypatch.setattr(streams, "compute_behind", lambda mark: None)
    host.move([(1, 1)])
    assert copies.steps_over == 0
