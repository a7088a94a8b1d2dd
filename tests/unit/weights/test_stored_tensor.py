"""Cutting and converting stored tensors commute for every scheme."""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given
from hypothesis import strategies as st
from model_support.gguf_files import SCALES, random_blocks

from plimsoll_runtime.weights.gguf.blocks import GgufBlocks
from plimsoll_runtime.weights.image_arena import Hollow
from plimsoll_runtime.weights.stored_tensor import StoredTensor, plain

ROWS, COLUMNS = 6, 1024
QUANTISED = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q8_0, *SCALES]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def blocks_of(kind: Kind) -> StoredTensor:
    """Return random numbers of a GGUF type."""
    if kind in SCALES:
        stored = random_blocks(kind, ROWS, COLUMNS, spread=1.0)
    else:
        stored = gguf.quantize(np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32), kind)
    blocks = torch.from_numpy(np.ascontiguousarray(stored).view(np.uint8).reshape(ROWS, -1))
    return StoredTensor(GgufBlocks(kind), (ROWS, COLUMNS), {"blocks": blocks})


def floats_of(dtype: torch.dtype) -> StoredTensor:
    return plain(torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).to(dtype))


MADE: list[tuple[str, Callable[[], StoredTensor]]] = [
    *((kind.name, lambda kind=kind: blocks_of(kind)) for kind in QUANTISED),
    *((str(dtype), lambda dtype=dtype: floats_of(dtype)) for dtype in FLOATS),
]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("make", [make for _, make in MADE], ids=[name for name, _ in MADE])
@given(data=st.data())
def test_what_is_cut_is_what_is_cut_of_all(make: Callable[[], StoredTensor], data: st.DataObject) -> None:
    stored = make()
    block = gguf.GGML_QUANT_SIZES[stored.scheme.kind][0] if isinstance(stored.scheme, GgufBlocks) else 1
    top = data.draw(st.integers(0, ROWS - 1))
    bottom = data.draw(st.integers(top + 1, ROWS))
    left = data.draw(st.integers(0, COLUMNS // block - 1))
    right = data.draw(st.integers(left + 1, COLUMNS // block))
    whole = stored.converted(torch.float32)
    cut = stored.rows(top, bottom).columns(left * block, right * block)
    assert cut.shape == (bottom - top, (right - left) * block)
    assert torch.equal(cut.converted(torch.float32), whole[top:bottom, left * block : right * block])
    other_way = stored.columns(left * block, right * block).rows(top, bottom)
    assert torch.equal(other_way.converted(torch.bfloat16), cut.converted(torch.bfloat16))


@pytest.mark.parametrize(("first", "last"), [(-1, 2), (2, 2), (3, 1), (0, ROWS + 1)])
def test_rows_that_there_are_not(first: int, last: int) -> None:
    with pytest.raises(ValueError, match=f"rows {first} to {last} are not a range of a tensor of {ROWS}"):
        blocks_of(Kind.Q8_0).rows(first, last)


def test_blocks_are_not_cut() -> None:
    with pytest.raises(ValueError, match="Q8_0 has blocks of 32 columns"):
        blocks_of(Kind.Q8_0).columns(0, 48)
    with pytest.raises(ValueError, match="of a tensor of 1024"):
        blocks_of(Kind.Q8_0).columns(1024, 1056)


def test_what_is_kept_has_memory_of_its_own() -> None:
    stored = floats_of(torch.float32)
    values = stored.parts["values"]
    assert stored.converted(torch.float32).data_ptr() == values.data_ptr()
    for found in (stored, stored.rows(1, 3)):
        kept = found.converted(torch.float32, keep=True)
        assert kept.untyped_storage().data_ptr() != values.untyped_storage().data_ptr()


def test_pages_are_released_once_they_were_read() -> None:
    released: list[str] = []
    found = blocks_of(Kind.Q8_0)
    stored = StoredTensor(found.scheme, found.shape, found.parts, lambda: released.append("all"))
    stored.rows(0, 2)
    assert released == []
    stored.rows(0, 2).converted(torch.float32)
    assert released == ["all"]


def test_a_hollow_tensor_has_shapes_alone() -> None:
    cut = StoredTensor(Hollow(), (8, 4), {}).rows(2, 5).columns(0, 2)
    assert cut.converted(torch.bfloat16).shape == (3, 2)
    assert cut.converted(torch.bfloat16).untyped_storage().nbytes() == 2
