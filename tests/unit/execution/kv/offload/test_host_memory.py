"""Frames of host memory: of the requested size, and pinned as long as they are in use."""

from __future__ import annotations

import gc

import pytest
import torch
from kernel_support.late_streams import LateStreams

from plimsoll_runtime.errors import MemoryLimitError
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks, host_bytes
from plimsoll_runtime.models.spec.attention import AttentionShape

HUGE = 2 << 20


class Registry:
    """The memory that a GPU's runtime has locked: size by address."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.error = 0

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        if not self.error:
            self.locked[pointer] = size
        return self.error

    def cudaHostUnregister(self, pointer: int) -> int:
        del self.locked[pointer]
        return 0


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry()
    monkeypatch.setattr("torch.cuda.cudart", lambda: made)
    monkeypatch.setattr("plimsoll_runtime.execution.kv.offload.host_memory.streams_of", streams_of)
    return made


def streams_of(device: torch.device) -> LateStreams | None:
    return None if device.type == "cpu" else LateStreams()


def cache(device: str) -> KvCache:
    """Return a cache with blocks of 64 KiB, on the CPU under any device name."""
    made = KvCache([AttentionShape(4, 4, 128, 1.0)], 2, 16, torch.float32, torch.device("cpu"))
    made.device = torch.device(device)
    return made


def test_what_is_asked_for_is_what_is_pinned(registry: Registry) -> None:
    """It is not rounded up to a power of two."""
    block_bytes = cache("cuda").block_bytes
    frames = 5 * HUGE // block_bytes - 1
    host = HostBlocks(cache("cuda"), frames)
    assert sum(registry.locked.values()) == host_bytes(frames, block_bytes) == 5 * HUGE
    (address,) = registry.locked
    first = torch.frombuffer(host.row(0), dtype=torch.uint8)
    last = torch.frombuffer(host.row(frames), dtype=torch.uint8)
    assert first.data_ptr() == address
    assert last.data_ptr() + block_bytes == address + 5 * HUGE
    assert not any(host.row(frames))


def test_it_is_unpinned_with_its_last_user(registry: Registry) -> None:
    host = HostBlocks(cache("cuda"), 3)
    other = HostBlocks(cache("cuda"), 4)
    del host
    gc.collect()
    assert list(registry.locked.values()) == [5 * cache("cuda").block_bytes]
    assert len(other.row(1)) == cache("cuda").block_bytes


def test_copies_are_over_before_it_is_unpinned(registry: Registry) -> None:
    streams = LateStreams()
    host = HostBlocks(cache("cuda"), 3, streams=streams)
    host.move([(1, 1)])
    streams.copies.append(lambda: len(registry.locked) == 1)
    del host
    gc.collect()
    assert not streams.copies
    assert not registry.locked


def test_what_cannot_be_pinned_is_refused_with_the_numbers(registry: Registry) -> None:
    registry.error = 2
    with pytest.raises(MemoryLimitError, match=r"cannot pin 0\.01 GiB of host memory .*\(CUDA error 2\); lower"):
        HostBlocks(cache("cuda"), 5 * HUGE // cache("cuda").block_bytes - 1)
    gc.collect()
    assert not registry.locked, "nothing is unpinned that was not"


def test_on_a_cpu_nothing_is_pinned(registry: Registry) -> None:
    HostBlocks(cache("cpu"), 3)
    assert not registry.locked


@pytest.mark.gpu
def test_a_gpu_takes_registered_memory_for_pinned() -> None:
    """Copies in both directions are tested in `test_kv_cache`."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    on_it = KvCache([AttentionShape(4, 4, 128, 1.0)], 4, 16, torch.float32, torch.device("cuda"))
    assert HostBlocks(on_it, 40)._memory.is_pinned()
