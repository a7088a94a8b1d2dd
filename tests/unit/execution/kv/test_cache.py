"""A block is contiguous, and stays intact when it is moved, copied or freed, for each layer."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks
from plimsoll_runtime.execution.runners.base import copy_blocks
from plimsoll_runtime.models.spec.attention import AttentionShape

SHAPES = [AttentionShape(4, 2, 16, 1.0), AttentionShape(4, 1, 32, 1.0)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def filled(device: str, shapes: Sequence[AttentionShape] = SHAPES, num_blocks: int = 40) -> KvCache:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    cache = KvCache(shapes, num_blocks, 8, torch.bfloat16, torch.device(device))
    torch.manual_seed(0)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn(tensor.shape))
    return cache


@st.composite
def layers_in_groups(draw: st.DrawFn) -> tuple[list[AttentionShape], list[list[int]]]:
    """Draw layers of any heads, some with one vector a token, in groups of any sizes."""
    heads = st.builds(
        lambda kv_heads, head_dim, latent: AttentionShape(kv_heads, kv_heads, head_dim, 1.0, latent=latent),
        st.integers(1, 3),
        st.sampled_from([8, 16, 24, 40]),
        st.booleans(),
    )
    shapes = draw(st.lists(heads, min_size=1, max_size=6))
    groups: list[list[int]] = [[] for _ in range(draw(st.integers(1, 3)))]
    for layer in draw(st.permutations(range(len(shapes)))):
        draw(st.sampled_from(groups)).append(layer)
    return shapes, groups


def tensors_of(cache: KvCache, group: int) -> list[torch.Tensor]:
    """Return all tensors of a group's layers, each once."""
    layers = cache.groups[group]
    values = [cache.values[layer] for layer in layers if not cache.shapes[layer].latent]
    return [*(cache.keys[layer] for layer in layers), *values]


@given(layers_in_groups(), st.integers(1, 5))
def test_a_block_lies_in_one_piece(given: tuple[list[AttentionShape], list[list[int]]], block_size: int) -> None:
    """A group's keys and values are exactly the memory of its block, each element once."""
    shapes, groups = given
    cache = KvCache(shapes, 3, block_size, torch.float32, torch.device("cpu"), groups=groups)
    begin = cache._memory.data_ptr() // 4
    widths = [sum(shapes[layer].cached_width for layer in group) for group in groups]
    assert cache.block_bytes == 4 * block_size * max(widths)
    for group, width in enumerate(widths):
        for block in range(3):
            seen: list[int] = []
            for tensor in tensors_of(cache, group):
                places = torch.arange(cache.nbytes // 4).as_strided(
                    tensor.shape, tensor.stride(), tensor.data_ptr() // 4 - begin
                )
                seen += places[:, block].flatten().tolist()
            first = block * cache.block_bytes // 4
            assert sorted(seen) == list(range(first, first + block_size * width))


@given(layers_in_groups(), st.integers(1, 5), st.data())
def test_rows_are_the_blocks_of_each_head(
    given: tuple[list[AttentionShape], list[list[int]]], block_size: int, data: st.DataObject
) -> None:
    shapes, groups = given
    cache = KvCache(shapes, 4, block_size, torch.float32, torch.device("cpu"), groups=groups)
    cache._memory.copy_(torch.arange(cache.nbytes // 4).view(cache._memory.shape))
    layer = data.draw(st.integers(0, len(shapes) - 1))
    of_head, of_block = cache.row_strides(shapes[layer])
    for tensor in (cache.keys[layer], cache.values[layer]):
        rows = cache.rows(tensor)
        for head in range(tensor.shape[0]):
            for block in range(4):
                assert torch.equal(rows[head * of_head + block * of_block], tensor[head, block].flatten())


class Moved:
    """A cache with frames, and the expected contents of each block: its group and a number."""

    BLOCKS, FRAMES, TOKENS = 12, 5, 2

    def __init__(self, shapes: list[AttentionShape], groups: list[list[int]]) -> None:
        self.cache = KvCache(shapes, self.BLOCKS, self.TOKENS, torch.float32, torch.device("cpu"), groups=groups)
        self.host = HostBlocks(self.cache, self.FRAMES)
        self.blocks: dict[int, tuple[int, int]] = {}
        self.frames: dict[int, tuple[int, int]] = {}
        self.taken = self.BLOCKS
        self._count = 0

    def write(self, block: int, group: int) -> None:
        """Write a block as the layers of a group do."""
        self._count += 1
        self.blocks[block] = group, self._count
        for number, tensor in enumerate(tensors_of(self.cache, group)):
            tensor[:, block] = self._wanted(tensor, self._count, number)

    def check_integrity(self) -> None:
        """Check that every layer of a block's group reads the written contents, wherever the block is."""
        assert self.cache.taken == self.taken
        for block, (group, count) in self.blocks.items():
            for number, tensor in enumerate(tensors_of(self.cache, group)):
                assert torch.equal(tensor[:, block], self._wanted(tensor, count, number))

    def _wanted(self, tensor: torch.Tensor, count: int, number: int) -> torch.Tensor:
        heads, _, tokens, dims = tensor.shape
        within = torch.arange(heads * tokens * dims, dtype=torch.float32).view(heads, tokens, dims)
        return within + 1000 * number + 10000 * count


@settings(deadline=None)
@given(layers_in_groups(), st.data())
def test_moves_leave_every_layer_what_it_has(
    given: tuple[list[AttentionShape], list[list[int]]], data: st.DataObject
) -> None:
    """Writes, copies, spills, restores, and a cache that shrinks and grows, in any order."""
    moved = Moved(*given)

    def some(numbers: Sequence[int], most: int = 3) -> list[int]:
        return data.draw(st.lists(st.sampled_from(numbers), max_size=most, unique=True)) if numbers else []

    for _ in range(data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from(["write", "copy", "spill", "restore", "resize"]))
        usable = list(range(1, moved.taken))
        if kind == "write":
            for block in some(usable):
                moved.write(block, data.draw(st.integers(0, len(moved.cache.groups) - 1)))
        elif kind == "copy":
            pairs = [(data.draw(st.sampled_from(sorted(moved.blocks))), to) for to in some(usable) if moved.blocks]
            moved.cache.copy_blocks(pairs)
            moved.blocks |= {to: moved.blocks[of] for of, to in pairs}
        elif kind == "spill":
            pairs = list(zip(some(sorted(moved.blocks)), range(1, moved.FRAMES), strict=False))
            copy_blocks(StepPlan((), spills=pairs), moved.cache, moved.host)
            moved.frames |= {frame: moved.blocks[block] for block, frame in pairs}
        elif kind == "restore":
            pairs = list(zip(some(sorted(moved.frames)), some(usable), strict=False))
            copy_blocks(StepPlan((), restores=pairs), moved.cache, moved.host)
            moved.blocks |= {block: moved.frames[frame] for frame, block in pairs}
        else:
            taken = data.draw(st.integers(2, moved.BLOCKS))
            free = [block for block in range(1, taken) if block not in moved.blocks]
            pairs = list(zip([block for block in moved.blocks if block >= taken], free, strict=False))
            moved.cache.resize(taken, pairs)
            moved.taken = taken
            moved.blocks |= {to: moved.blocks[of] for of, to in pairs}
            moved.blocks = {block: what for block, what in moved.blocks.items() if block < taken}
        moved.check_integrity()


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_come_back_as_they_went_wherever_they_go(device: str) -> None:
    cache = filled(device)
    before = [t.clone() for t in (*cache.keys, *cache.values)]
    host = HostBlocks(cache, 36)
    sources = list(range(2, 38))
    copy_blocks(StepPlan((), spills=[(block, frame) for frame, block in enumerate(sources, 1)]), cache, host)
    if device == "cuda":
        torch.cuda.synchronize()
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(torch.nan)
    targets = sources[::-1]
    copy_blocks(StepPlan((), restores=[(frame, block) for frame, block in enumerate(targets, 1)]), cache, host)
    for now, then in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(now[:, targets], then[:, sources])
        assert now[:, [0, 1, 38, 39]].isnan().all(), "no other block is touched"


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_of_groups_whose_heads_differ_come_back_and_move_whole(device: str) -> None:
    """Each block belongs to one group at a time: three to the first layer's, the others to the second's."""
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
    copy_blocks(StepPlan((), spills=[(block, block) for block in range(1, 7)]), cache, host)
    cache.copy_blocks([(1, 7), (4, 8), (5, 1)])
    if device == "cuda":
        torch.cuda.synchronize()
    for now, then in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(now[:, [7, 8, 1, 2, 3, 6]], then[:, [1, 4, 5, 2, 3, 6]])
    copy_blocks(StepPlan((), restores=[(1, 4), (6, 1)]), cache, host)
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
    copy_blocks(StepPlan((), spills=[(3, 1)]), cache, host)
    cache.copy_blocks([(2, 3), (3, 4)])
    copy_blocks(StepPlan((), restores=[(1, 5)]), cache, host)
    for now, before in zip((*cache.keys, cache.values[1]), then, strict=True):
        assert torch.equal(now[:, [3, 4, 5]], before[:, [2, 3, 3]])


def test_a_frame_is_all_of_a_block_and_nothing_else() -> None:
    cache = filled("cpu")
    host = HostBlocks(cache, 3)
    copy_blocks(StepPlan((), spills=[(5, 2)]), cache, host)
    elements = torch.frombuffer(host.row(2), dtype=torch.bfloat16)
    assert elements.nbytes == cache.block_bytes == sum(2 * s.kv_heads * 8 * s.head_dim for s in SHAPES) * 2
    wanted = torch.cat([t[:, 5].flatten() for t in (*cache.keys, *cache.values)])
    assert torch.equal(elements.sort().values, wanted.sort().values)
    assert not any(host.row(1)), "the frame before"
    assert not any(host.row(3)), "the frame behind"


@pytest.mark.parametrize("device", DEVICES)
def test_copied_blocks_are_their_sources_keys_and_values(device: str) -> None:
    """In every layer; a block that is both target and source passes on its earlier contents."""
    cache = filled(device)
    before = [t.clone() for t in (*cache.keys, *cache.values)]
    cache.copy_blocks([(3, 7), (7, 9), (12, 3)])
    for now, then in zip((*cache.keys, *cache.values), before, strict=True):
        expected = then.clone()
        for source, target in ((3, 7), (7, 9), (12, 3)):
            expected[:, target] = then[:, source]
        assert torch.equal(now, expected)


def resident(cache: KvCache) -> int:
    """Return the resident bytes of the cache's memory."""
    pages: set[int] = set()
    for tensor in (*cache.keys, *cache.values):
        begin = tensor.data_ptr() // PAGE
        count = -(-(tensor.data_ptr() + _extent(tensor)) // PAGE) - begin
        present = (ctypes.c_ubyte * count)()
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin * PAGE), ctypes.c_size_t(count * PAGE), present) == 0
        pages.update(begin + i for i, flags in enumerate(present) if flags & 1)
    return PAGE * len(pages)


def _extent(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to its last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


PAGE = mmap.PAGESIZE
LARGE = [AttentionShape(8, 8, 128, 1.0)] * 3


def large_cache(blocks: int, taken: int | None = None) -> KvCache:
    """Return a cache of 64 KiB a block and layer in bfloat16."""
    return KvCache(LARGE, blocks, 16, torch.bfloat16, torch.device("cpu"), taken=taken)


def test_pages_of_blocks_that_are_given_up_are_given_back() -> None:
    cache = large_cache(400)
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
    # The first page may have a part of a block that stays.
    assert 300 * each - PAGE <= given <= 300 * each
    for tensor in (*cache.keys, *cache.values):
        assert (tensor[:, 7] == 2.0).all()
        assert (tensor[:, 8] == 3.0).all()
        assert (tensor[:, [i for i in range(100) if i not in (7, 8)]] == 1.0).all(), "what stays is not touched"
    cache.resize(400, [])
    assert resident(cache) == full - given, "pages of a grown cache are taken when they are touched"
    for tensor in (*cache.keys, *cache.values):
        assert (tensor[:, 101:399] == 0.0).all()
        tensor[:, 399] = 5.0
        assert (tensor[:, 399] == 5.0).all()


def test_addresses_are_no_memory() -> None:
    cache = large_cache(4000, taken=10)
    assert cache._ahead is not None
    cache._ahead._thread.join()
    assert 9 * cache.block_bytes <= resident(cache) <= 10 * cache.block_bytes + 2 * 2**21
    assert cache.nbytes == 4000 * cache.block_bytes


def test_pages_that_were_given_back_are_not_taken_ahead_again() -> None:
    """The thread that populates pages has not come far when the cache shrinks."""
    cache = large_cache(1000)
    cache.resize(2, [])
    assert cache._ahead is not None
    assert not cache._ahead._thread.is_alive()
    assert resident(cache) <= 2 * cache.block_bytes + 2 * 2**21


@pytest.mark.parametrize("device", DEVICES)
def test_copies_of_a_step_take_no_memory(device: str) -> None:
    """A device may have no memory left, so nothing is gathered if no block is both source and target."""
    cache = filled(device)
    before = [t.clone() for t in (*cache.keys, *cache.values)]
    made: list[str] = []

    class Noted(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    with Noted():  # type: ignore[no-untyped-call]
        cache.copy_blocks([(3, 7), (12, 9)])
    assert set(made) == {"aten::select", "aten::copy_"}
    for now, then in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(now[:, [7, 9]], then[:, [3, 12]])
