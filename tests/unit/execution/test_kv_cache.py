"""Blocks on their way to host memory and back, in every layout."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.tiers.host import HostBlocks
from plimsoll_runtime.models.spec.attention import AttentionShape

SHAPES = [AttentionShape(4, 2, 16, 1.0), AttentionShape(4, 1, 32, 1.0)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def filled(device: str, paired: bool, num_blocks: int = 40) -> KvCache:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    cache = KvCache(SHAPES, num_blocks, 8, torch.bfloat16, torch.device(device), paired=paired)
    torch.manual_seed(0)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn(tensor.shape))
    return cache


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("paired", [False, True])
def test_blocks_come_back_as_they_went_wherever_they_go(device: str, paired: bool) -> None:
    if paired and device != "cpu":
        pytest.skip("paired caches are for CPUs")
    cache = filled(device, paired)
    before = [t.clone() for t in (*cache.keys, *cache.values)]
    host = HostBlocks(cache, 36)
    sources = list(range(2, 38))
    host.spill([(block, frame) for frame, block in enumerate(sources, 1)])
    if device == "cuda":
        torch.cuda.synchronize()
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(torch.nan)
    targets = sources[::-1]
    host.restore([(frame, block) for frame, block in enumerate(targets, 1)])
    for now, then in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(now[:, targets], then[:, sources])
        assert now[:, [0, 1, 38, 39]].isnan().all(), "no other block is touched"


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_of_groups_whose_heads_differ_come_back_and_move_whole(device: str) -> None:
    """Each block is one group's at a time: three are the first layer's, the others the second's."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    cache = KvCache(SHAPES, 9, 8, torch.bfloat16, torch.device(device), groups=[[0], [1]])
    assert cache.keys[0].data_ptr() == cache.keys[1].data_ptr()
    torch.manual_seed(0)
    for tensors in (cache.keys, cache.values):
        for tensor, blocks in zip(tensors, (slice(1, 4), slice(4, 7)), strict=True):
            tensor[:, blocks] = torch.randn(tensor[:, blocks].shape).to(tensor)
    before = [t.clone() for t in (*cache.keys, *cache.values)]
    host = HostBlocks(cache, 6)
    host.spill([(block, block) for block in range(1, 7)])
    cache.copy_blocks([(1, 7), (4, 8), (5, 1)])
    if device == "cuda":
        torch.cuda.synchronize()
    for now, then in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(now[:, [7, 8, 1, 2, 3, 6]], then[:, [1, 4, 5, 2, 3, 6]])
    host.restore([(1, 4), (6, 1)])
    for now, then in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(now[:, [4, 1]], then[:, [1, 6]])
    cache.resize(5, [(8, 2)])
    for now, then in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(now[:, [2, 4, 3]], then[:, [4, 1, 3]])


def test_keys_that_are_values_are_kept_once() -> None:
    shapes = [AttentionShape(4, 1, 24, 1.0, latent=True), SHAPES[0]]
    cache = KvCache(shapes, 6, 8, torch.bfloat16, torch.device("cpu"))
    assert cache.values[0] is cache.keys[0]
    assert cache.block_bytes == 8 * (24 + 2 * 2 * 16) * 2 == 8 * sum(s.cached_width for s in shapes) * 2
    torch.manual_seed(0)
    for tensor in (*cache.keys, cache.values[1]):
        tensor.copy_(torch.randn(tensor.shape))
    then = [t.clone() for t in (*cache.keys, cache.values[1])]
    host = HostBlocks(cache, 2)
    host.spill([(3, 1)])
    cache.copy_blocks([(2, 3), (3, 4)])
    host.restore([(1, 5)])
    for now, before in zip((*cache.keys, cache.values[1]), then, strict=True):
        assert torch.equal(now[:, [3, 4, 5]], before[:, [2, 3, 3]])
    with pytest.raises(ValueError, match="cannot lie in pairs"):
        KvCache(shapes, 6, 8, torch.bfloat16, torch.device("cpu"), paired=True)


@pytest.mark.parametrize("paired", [False, True])
def test_a_frame_is_all_of_a_block_and_nothing_else(paired: bool) -> None:
    cache = filled("cpu", paired)
    host = HostBlocks(cache, 3)
    host.spill([(5, 2)])
    elements = torch.frombuffer(host.row(2), dtype=torch.bfloat16)
    assert elements.nbytes == cache.block_bytes == sum(2 * s.kv_heads * 8 * s.head_dim for s in SHAPES) * 2
    wanted = torch.cat([t[:, 5].flatten() for t in (*cache.keys, *cache.values)])
    assert torch.equal(elements.sort().values, wanted.sort().values)
    assert not any(host.row(1)), "the frame before"
    assert not any(host.row(3)), "the frame behind"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("paired", [False, True])
def test_copied_blocks_are_their_sources_keys_and_values(device: str, paired: bool) -> None:
    """In every layer; a block that is both target and source hands on what it was."""
    if paired and device != "cpu":
        pytest.skip("paired caches are for CPUs")
    cache = filled(device, paired)
    before = [t.clone() for t in (*cache.keys, *cache.values)]
    cache.copy_blocks([(3, 7), (7, 9), (12, 3)])
    for now, then in zip((*cache.keys, *cache.values), before, strict=True):
        expected = then.clone()
        for source, target in ((3, 7), (7, 9), (12, 3)):
            expected[:, target] = then[:, source]
        assert torch.equal(now, expected)


class Marks:
    """An event that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def record(self) -> None:
        self.calls.append("record")

    def synchronize(self) -> None:
        self.calls.append("wait")


def test_frames_are_to_be_waited_for_after_their_copies_are_launched() -> None:
    marks = Marks()
    host = HostBlocks(filled("cpu", False), 3, restored=marks)
    host.restore([(1, 2)])
    host.spill([(3, 1)])
    assert marks.calls == ["record"]
    host.wait()
    assert marks.calls == ["record", "wait"]


def resident(cache: KvCache) -> int:
    """Bytes of those of the process's pages that the cache lies in and that have memory now."""
    pages: set[int] = set()
    for tensor in (*cache.keys, *cache.values):
        begin = tensor.data_ptr() // PAGE
        count = -(-(tensor.data_ptr() + _extent(tensor)) // PAGE) - begin
        present = (ctypes.c_ubyte * count)()
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin * PAGE), ctypes.c_size_t(count * PAGE), present) == 0
        pages.update(begin + i for i, flags in enumerate(present) if flags & 1)
    return PAGE * len(pages)


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from its first element to its last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


PAGE = mmap.PAGESIZE
LARGE = [AttentionShape(8, 8, 128, 1.0)] * 3


def large_cache(paired: bool, blocks: int, taken: int | None = None) -> KvCache:
    """Of 64 KiB a block and layer in bfloat16."""
    return KvCache(LARGE, blocks, 16, torch.bfloat16, torch.device("cpu"), paired=paired, taken=taken)


@pytest.mark.parametrize("paired", [False, True])
def test_pages_of_blocks_that_are_given_up_are_given_back(paired: bool) -> None:
    cache = large_cache(paired, 400)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(1.0)
    full = resident(cache)
    assert full >= cache.nbytes
    moves = [(399, 7), (350, 8)]
    for number, (source, _) in enumerate(moves):
        for tensor in (*cache.keys, *cache.values):
            tensor[:, source] = 2.0 + number
    cache.resize(100, moves)
    given = full - resident(cache)
    each = cache.block_bytes
    # A page at each end of a region (layer, or head of a layer) may hold parts of blocks on either side.
    regions = 3 if paired else 2 * 3 * 8
    assert 300 * each - 2 * regions * 4096 <= given <= 300 * each + 2 * regions * 4096
    for tensor in (*cache.keys, *cache.values):
        assert (tensor[:, 7] == 2.0).all()
        assert (tensor[:, 8] == 3.0).all()
        assert (tensor[:, [i for i in range(100) if i not in (7, 8)]] == 1.0).all(), "what stays is not touched"
    cache.resize(400, [])
    assert resident(cache) == full - given, "what is grown to takes pages when it is touched"
    for tensor in (*cache.keys, *cache.values):
        assert (tensor[:, 101:399] == 0.0).all()
        tensor[:, 399] = 5.0
        assert (tensor[:, 399] == 5.0).all()


def test_addresses_are_no_memory() -> None:
    cache = large_cache(True, 4000, taken=10)
    assert cache._ahead is not None
    cache._ahead._thread.join()
    assert 9 * cache.block_bytes <= resident(cache) <= 10 * cache.block_bytes + 3 * 2 * 2**21
    assert cache.nbytes == 4000 * cache.block_bytes


def test_pages_that_were_given_back_are_not_taken_ahead_again() -> None:
    """The thread that takes pages has not come far when the cache shrinks."""
    cache = large_cache(True, 1000)
    cache.resize(2, [])
    assert cache._ahead is not None
    assert not cache._ahead._thread.is_alive()
    assert resident(cache) <= 2 * cache.block_bytes + 3 * 2 * 2**21
