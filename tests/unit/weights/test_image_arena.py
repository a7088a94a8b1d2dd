"""Tensors keep their positions in an image, and only equal tensors can be taken out."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_support.images import FACTS
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import HUGE_PAGE
from plimsoll_runtime.errors import MemoryLimitError, ModelError
from plimsoll_runtime.weights.image import Image, ImageHeader
from plimsoll_runtime.weights.image_arena import CountingArena, FilledArena, FillingArena, hollow

DTYPES = (torch.float32, torch.bfloat16, torch.uint8)
ROOM = 2**16


@pytest.fixture
def image() -> Iterator[Image]:
    made = Image.create(4 * HUGE_PAGE + ROOM, "m")
    yield made
    made.close()


def fill(image: Image, tensors: list[Tensor]) -> ImageHeader:
    arena = FillingArena(image)
    for tensor in tensors:
        assert torch.equal(arena.keep(tensor), tensor)
    return arena.finish(FACTS)


def header_of(image: Image) -> ImageHeader:
    header = image.header()
    assert header is not None
    return header


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randint(0, 250, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def mappings() -> list[str]:
    """Return this process's mappings of images: rights and path."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[1] for line in lines if "memfd:plimsoll:" in line]


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3), st.sampled_from(DTYPES)), max_size=12))
def test_what_was_kept_comes_out_bit_by_bit(shapes: list[tuple[list[int], torch.dtype]]) -> None:
    tensors = [numbers(tuple(shape), dtype, seed) for seed, (shape, dtype) in enumerate(shapes)]
    counting = CountingArena()
    for tensor in tensors:
        assert counting.keep(tensor).shape == tensor.shape
    image = Image.create(counting.end + ROOM, "m")
    try:
        header = fill(image, tensors)
        assert header == header_of(image)
        assert header.nbytes == image.size
        assert len(header.places) == counting.count
        ends = [place.offset + tensor.nbytes for place, tensor in zip(header.places, tensors, strict=True)]
        assert all(end <= place.offset for end, place in zip(ends, header.places[1:], strict=False))
        assert all(end <= counting.end <= header.nbytes for end in ends)
        filled = FilledArena(image, header)
        found = [filled.keep(hollow(tensor.shape, tensor.dtype)) for tensor in tensors]
        filled.finish()
        for one, other in zip(found, tensors, strict=True):
            assert one.dtype is other.dtype
            assert torch.equal(one, other)
            assert one.data_ptr() % 64 == 0 or not one.numel()
    finally:
        image.close()


def test_nothing_is_filled_twice(image: Image) -> None:
    fill(image, [torch.ones(3)])
    filled = FilledArena(image, header_of(image))
    assert torch.equal(filled.place((3,), torch.float32, lambda to: to.fill_(7)), torch.ones(3))


@pytest.mark.long
def test_it_is_read_only_once_it_is_filled_and_gone_when_nobody_reads_it(image: Image) -> None:
    assert mappings() == []
    arena = FillingArena(image)
    kept = arena.keep(torch.arange(5.0))
    assert mappings() == ["rw-s"]
    arena.finish(FACTS)
    filled = FilledArena(image, header_of(image))
    woken = filled.keep(kept)
    assert mappings() == ["r--s", "r--s"]
    del arena, filled
    gc.collect()
    assert mappings() == ["r--s", "r--s"], "its tensors hold it"
    del kept
    gc.collect()
    image.close()
    assert torch.equal(woken, torch.arange(5.0)), "a mapping keeps the memory"
    del woken
    gc.collect()
    assert mappings() == []


def test_plain_tensors_for_a_gpu_stay_writable_for_a_driver_that_pins_them(image: Image) -> None:
    arena = FillingArena(image)
    arena.keep(torch.ones(3))
    arena.finish(msgspec.structs.replace(FACTS, device="cuda"))
    del arena
    filled = FilledArena(image, header_of(image))
    assert filled.keep(torch.ones(3)).data_ptr() > filled.mapping.address
    assert mappings()[-1] == "rw-s"


def test_it_begins_at_a_multiple_of_a_huge_page(image: Image) -> None:
    fill(image, [torch.ones(3)])
    for _ in range(3):
        assert FilledArena(image, header_of(image)).mapping.address % HUGE_PAGE == 0


def test_whole_huge_pages_are_put_together_where_the_kernel_can(image: Image) -> None:
    arena = FillingArena(image)
    arena.keep(torch.ones(3 * HUGE_PAGE, dtype=torch.uint8))
    able = arena.mapping.collapse(3 * HUGE_PAGE)
    arena.finish(FACTS)
    filled = FilledArena(image, header_of(image))
    seen = filled.keep(torch.ones(3 * HUGE_PAGE, dtype=torch.uint8))
    assert int(seen[::4096].sum()) == 3 * HUGE_PAGE // 4096
    if not able:
        pytest.skip("this kernel collapses no shared memory")
    text = Path("/proc/self/smaps").read_text()
    [entry] = [part for part in text.split("\n") if f"{filled.mapping.address:x}-" in part]
    after = text[text.index(entry) :]
    [huge] = [line for line in after.splitlines()[:30] if line.startswith("ShmemPmdMapped")]
    assert int(huge.split()[1]) >= 2 * HUGE_PAGE // 1024


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([torch.ones(2)], r"tensor 0 of the image is float32 \[3\], but the decoder needs float32 \[2\]"),
        ([torch.ones(3).bfloat16()], r"is float32 \[3\], but the decoder needs bfloat16 \[3\]"),
        ([torch.ones(3)], "the image has 1 tensors that the decoder does not need"),
        ([torch.ones(3), torch.ones(1, 4), torch.ones(1)], "the image has 2 tensors, but the decoder needs more"),
    ],
)
def test_another_decoder_is_refused(image: Image, wanted: list[Tensor], message: str) -> None:
    fill(image, [torch.ones(3), torch.ones(1, 4)])
    filled = FilledArena(image, header_of(image))

    def take() -> None:
        for tensor in wanted:
            filled.keep(tensor)
        filled.finish()

    with pytest.raises(ModelError, match=message):
        take()


def test_one_that_is_too_small_is_refused_with_the_numbers() -> None:
    image = Image.create(ROOM, "m")
    arena = FillingArena(image)
    with pytest.raises(MemoryLimitError, match=f"the weights need {64 + ROOM} bytes, but their image has only {ROOM}"):
        arena.keep(torch.ones(ROOM, dtype=torch.uint8))
    arena.keep(torch.ones(ROOM - 64 - 8, dtype=torch.uint8))
    with pytest.raises(MemoryLimitError, match="the weights need"):
        arena.finish(FACTS)
    assert image.header() is None
    image.close()


def test_one_of_another_length_is_refused(image: Image) -> None:
    header = fill(image, [torch.ones(3)])
    with pytest.raises(ModelError, match=f"has {header.nbytes} bytes, but its header says {header.nbytes + 1}"):
        FilledArena(image, msgspec.structs.replace(header, nbytes=header.nbytes + 1))
