"""A part of a weight has the numbers of the same rows or columns of the whole weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from model_support.gguf_files import SCALES, random_blocks
from torch import Tensor

from plimsoll_runtime.models.ops.weight import ByGroup, InStack, Range, Weight
from plimsoll_runtime.weights.gguf.blocks import GgufBlocks
from plimsoll_runtime.weights.quantisation_tensors import Mxfp4, Scaled
from plimsoll_runtime.weights.stored_tensor import ALIGNMENTS, Parts, Plain, StoredTensor, converted_range, plain

SMALL, LARGE = 24, 512
"""Rows and columns in a file. The columns are two blocks of the K types of GGUF."""
STACK = InStack(1, 3)
EXAMPLES = 40
"""For each of many layouts and schemes."""


def grouped(size: int) -> ByGroup:
    """Return an order of rows as GPT-NeoX has it: queries, keys and values of each head."""
    each = size // 4
    return ByGroup(4, (each // 2, each // 4, each - each // 2 - each // 4), (0, 1, 2))


def sharded(size: int) -> ByGroup:
    """Return an order of rows as CodeGen has it: queries, values and keys of each shard."""
    return replace(grouped(size), first=(0, 2, 1))


def alternating(size: int) -> ByGroup:
    """Return an order of rows as gpt-oss has it: one row of the gate, one of the up projection."""
    return ByGroup(size // 2, (1, 1), (0, 1))


UPRIGHT = Weight("upright", (SMALL, LARGE))
TRANSPOSED = Weight("transposed", (LARGE, SMALL), transposed=True)
MATRICES: Mapping[str, Weight] = {
    "plain": UPRIGHT,
    "transposed": TRANSPOSED,
    "wide": replace(UPRIGHT, wide=True),
    **{
        f"{order.__name__}{suffix}": replace(weight, order=order(weight.shape[0]))
        for order in (grouped, sharded, alternating)
        for weight, suffix in ((UPRIGHT, ""), (TRANSPOSED, "-transposed"))
    },
    "stack": replace(UPRIGHT, stack=STACK),
    "stack-transposed": replace(TRANSPOSED, stack=STACK),
    "stack-alternating": replace(UPRIGHT, stack=STACK, order=alternating(SMALL)),
    "stack-transposed-alternating": replace(TRANSPOSED, stack=STACK, order=alternating(LARGE)),
    "stack-transposed-sharded": replace(TRANSPOSED, stack=STACK, order=sharded(LARGE)),
}
FOLDED: Mapping[str, Weight] = {
    "row-of-a-vector": Weight("row", (1, SMALL), folded=(SMALL,)),
    "folded-matrix": Weight("folded", (SMALL, 6), folded=(4, 6, 6)),
}
VECTORS: Mapping[str, Weight] = {
    "plain": Weight("vector", (SMALL,)),
    "grouped": Weight("vector", (SMALL,), order=grouped(SMALL)),
    "sharded": Weight("vector", (SMALL,), order=sharded(SMALL)),
    "stack": Weight("vector", (SMALL,), stack=STACK),
    "stack-alternating": Weight("vector", (SMALL,), stack=STACK, order=alternating(SMALL)),
    "head-norms": Weight("vector", (SMALL,), folded=(4, SMALL // 4)),
    "row": Weight("vector", (SMALL,), folded=(1, SMALL)),
}


def blocks_of(kind: Kind, shape: tuple[int, ...]) -> StoredTensor:
    """Return a tensor of a GGUF type."""
    rows, columns = prod(shape[:-1]), shape[-1]
    if kind in SCALES:
        stored = random_blocks(kind, rows, columns, spread=1.0)
    else:
        stored = gguf.quantize(np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32), kind)
    blocks = torch.from_numpy(np.ascontiguousarray(stored).view(np.uint8).reshape(*shape[:-1], -1))
    return StoredTensor(GgufBlocks(kind), shape, {"blocks": blocks})


def floats_of(dtype: torch.dtype, shape: tuple[int, ...]) -> StoredTensor:
    return plain(torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype))


def mxfp4_of(shape: tuple[int, ...]) -> StoredTensor:
    generator, groups = torch.Generator().manual_seed(0), (*shape[:-1], shape[-1] // 32)
    blocks = torch.randint(0, 256, (*groups, 16), generator=generator, dtype=torch.uint8)
    exponents = torch.randint(100, 140, groups, generator=generator, dtype=torch.uint8)
    return StoredTensor(Mxfp4(), shape, {"blocks": blocks, "exponents": exponents})


def scaled_of(run: int, shape: tuple[int, ...]) -> StoredTensor:
    """Return eight-bit numbers; each scale applies to `run` columns, the last one to fewer if they do not divide."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand((*shape[:-1], -(-shape[-1] // run)), generator=generator)
    return StoredTensor(Scaled(run), shape, {"values": values, "scales": scales})


SCHEMES: Mapping[str, Callable[[tuple[int, ...]], StoredTensor]] = {
    "float32": lambda shape: floats_of(torch.float32, shape),
    "bfloat16": lambda shape: floats_of(torch.bfloat16, shape),
    "Q8_0": lambda shape: blocks_of(Kind.Q8_0, shape),
    "Q4_K": lambda shape: blocks_of(Kind.Q4_K, shape),
    "Q6_K": lambda shape: blocks_of(Kind.Q6_K, shape),
    "mxfp4": mxfp4_of,
    "scaled-8": lambda shape: scaled_of(8, shape),
    "scaled-48": lambda shape: scaled_of(48, shape),  # the last group has 32 columns
    "scaled-128": lambda shape: scaled_of(128, shape),
    "scaled-rows": lambda shape: scaled_of(shape[-1], shape),
}
PLAIN = ("float32", "bfloat16")
BLOCKS = tuple(name for name in SCHEMES if name not in PLAIN)


@cache
def stored_of(scheme: str, shape: tuple[int, ...]) -> StoredTensor:
    """Return a tensor of a file whose last dimension is LARGE, unless it has a plain scheme."""
    return SCHEMES[scheme](shape)


@cache
def whole_of(weight: Weight, scheme: str, dtype: torch.dtype) -> Tensor:
    return weight.read(stored_of(scheme, weight.stored_shape), dtype)


@st.composite
def ranges_of(draw: st.DrawFn, size: int) -> list[Range]:
    """Draw up to three ranges in ascending order, at least one of which is not empty."""
    count = draw(st.integers(1, 3))
    ends = sorted(draw(st.lists(st.integers(0, size), min_size=2 * count, max_size=2 * count)))
    found = list(zip(ends[::2], ends[1::2], strict=True))
    if all(first == end for first, end in found):
        found = [*found[:-1], (found[-1][0], size)] if found[-1][0] < size else [(size - 1, size)]
    return found


def check_rows(weight: Weight, scheme: str, dtype: torch.dtype, ranges: Sequence[Range]) -> None:
    whole, part = whole_of(weight, scheme, dtype), weight.rows(*ranges)
    expected = torch.cat([whole[first:end] for first, end in ranges])
    check_read(weight, part, expected, scheme, dtype)


def check_read(weight: Weight, part: Weight, expected: Tensor, scheme: str, dtype: torch.dtype) -> None:
    assert part.stored_shape == weight.stored_shape
    found = part.read(stored_of(scheme, weight.stored_shape), dtype)
    assert tuple(found.shape) == part.shape
    assert found.dtype == dtype
    assert found.is_contiguous()
    assert torch.equal(found, expected)


def schemes_of(weight: Weight) -> Sequence[str]:
    return tuple(SCHEMES) if weight.stored_shape[-1] == LARGE else PLAIN


DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


@pytest.mark.parametrize("name", [*MATRICES, *FOLDED])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_rows_of_a_matrix(name: str, data: st.DataObject) -> None:
    weight = {**MATRICES, **FOLDED}[name]
    scheme = data.draw(st.sampled_from(schemes_of(weight)))
    check_rows(weight, scheme, data.draw(DTYPES), data.draw(ranges_of(weight.shape[0])))


@pytest.mark.parametrize("name", [*MATRICES, *FOLDED])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_columns_of_a_matrix(name: str, data: st.DataObject) -> None:
    weight = {**MATRICES, **FOLDED}[name]
    scheme, dtype = data.draw(st.sampled_from(schemes_of(weight))), data.draw(DTYPES)
    first = data.draw(st.integers(0, weight.shape[1] - 1))
    end = data.draw(st.integers(first + 1, weight.shape[1]))
    expected = whole_of(weight, scheme, dtype)[:, first:end]
    check_read(weight, weight.columns(first, end), expected, scheme, dtype)


@pytest.mark.parametrize("scheme", BLOCKS)
@settings(max_examples=EXAMPLES)
@given(first=st.integers(0, LARGE - 1), data=st.data())
def test_blocks_that_a_range_cuts(scheme: str, first: int, data: st.DataObject) -> None:
    """Columns of an output projection, and rows of a transposed matrix with an order, are columns in the file."""
    end = data.draw(st.integers(first + 1, LARGE))
    expected = whole_of(UPRIGHT, scheme, torch.float32)[:, first:end]
    check_read(UPRIGHT, UPRIGHT.columns(first, end), expected, scheme, torch.float32)
    check_rows(MATRICES["sharded-transposed"], scheme, torch.float32, [(first, end)])


@pytest.mark.parametrize("name", VECTORS)
@given(ranges=ranges_of(SMALL), scheme=st.sampled_from(PLAIN))
def test_rows_of_a_vector(name: str, ranges: Sequence[Range], scheme: str) -> None:
    check_rows(VECTORS[name], scheme, torch.float32, ranges)


@pytest.mark.parametrize("name", MATRICES)
def test_all_rows_and_all_columns_are_the_whole(name: str) -> None:
    weight = MATRICES[name]
    check_rows(weight, "float32", torch.float32, [(0, weight.shape[0])])
    whole = whole_of(weight, "float32", torch.float32)
    check_read(weight, weight.columns(0, weight.shape[1]), whole, "float32", torch.float32)


def test_empty_ranges_are_left_out() -> None:
    assert UPRIGHT.rows((3, 3), (4, 6), (9, 9)) == UPRIGHT.rows((4, 6))


KEPT: Mapping[str, Weight] = {
    "rows": UPRIGHT.rows((2, 9)),
    "columns": UPRIGHT.columns(0, LARGE),
    "rows-of-transposed": TRANSPOSED.rows((0, LARGE)),
    "columns-of-transposed": TRANSPOSED.columns(3, 5),
    "rows-of-a-stack": MATRICES["stack"].rows((2, 9)),
    "columns-of-a-stack": MATRICES["stack-transposed"].columns(0, 4),
    **{f"vector-{name}": weight.rows((2, 9)) for name, weight in VECTORS.items()},
}


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_part_has_memory_of_its_own(name: str) -> None:
    """A view of the mapped file would keep the file mapped. `WeightReader` keeps vectors and embeddings."""
    part = KEPT[name]
    stored = stored_of("float32", part.stored_shape)
    kept = part.read(stored, torch.float32, keep=True)
    mapped = stored.parts["values"].untyped_storage().data_ptr()
    shared = kept.untyped_storage().data_ptr() == mapped
    assert not shared


@dataclass(frozen=True, slots=True, eq=False)
class Counting:
    """A scheme of float32 numbers whose columns can be cut at multiples of `block`, and at the end. `converted_shapes`
    has the shape of each conversion.
    """

    block: int
    size: int
    converted_shapes: list[tuple[int, ...]] = field(default_factory=list)

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.converted_shapes.append(shape)
        return Plain(torch.float32).converted(parts, shape, dtype)

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        return Plain(torch.float32).rows(parts, first, last)

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        if first % self.block or (last % self.block and last != self.size):
            raise ValueError(f"columns {first} to {last} cut a block of {self.block}")
        return Plain(torch.float32).columns(parts, first, last)


def counting(block: int, rows: int, columns: int) -> tuple[Counting, StoredTensor]:
    scheme = Counting(block, columns)
    values = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
    return scheme, StoredTensor(scheme, (rows, columns), {"values": values})


@st.composite
def cut_ranges(draw: st.DrawFn) -> tuple[int, int, int]:
    """Draw the columns of a matrix, and a range of them."""
    columns = draw(st.integers(1, 1100))
    first = draw(st.integers(0, columns - 1))
    return columns, first, draw(st.integers(first + 1, columns))


@pytest.mark.parametrize("block", ALIGNMENTS)
@given(drawn=cut_ranges())
def test_only_the_blocks_around_a_range_are_converted(block: int, drawn: tuple[int, int, int]) -> None:
    columns, first, last = drawn
    scheme, stored = counting(block, 3, columns)
    found = converted_range(stored, 1, first, last, torch.float32)
    assert torch.equal(found, stored.parts["values"][:, first:last])
    begin, end = first // block * block, min(-(-last // block) * block, columns)
    [(rows, converted)] = scheme.converted_shapes
    assert (rows, converted) <= (3, end - begin)


@given(drawn=cut_ranges(), block=st.integers(1, 700))
def test_blocks_of_any_size_are_converted(drawn: tuple[int, int, int], block: int) -> None:
    columns, first, last = drawn
    scheme, stored = counting(block, 2, columns)
    assert torch.equal(converted_range(stored, 1, first, last, torch.float32), stored.parts["values"][:, first:last])
    assert len(scheme.converted_shapes) == 1


@given(first=st.integers(0, 9), count=st.integers(1, 9))
def test_only_the_rows_of_a_range_are_converted(first: int, count: int) -> None:
    scheme, stored = counting(256, 20, 8)
    found = converted_range(stored, 0, first, first + count, torch.bfloat16)
    assert torch.equal(found, stored.parts["values"][first : first + count].bfloat16())
    assert scheme.converted_shapes == [(count, 8)]


@pytest.mark.parametrize("order", [grouped, sharded, alternating])
@given(ranges=ranges_of(SMALL))
def test_only_wanted_rows_of_an_ordered_matrix_are_converted(
    order: Callable[[int], ByGroup], ranges: Sequence[Range]
) -> None:
    scheme, stored = counting(1, SMALL, 8)
    part = Weight("ordered", (SMALL, 8), order=order(SMALL)).rows(*ranges)
    part.read(stored, torch.float32)
    assert sum(rows for rows, _ in scheme.converted_shapes) == part.shape[0]


def test_one_matrix_of_a_stack_is_converted() -> None:
    scheme = Counting(1, 8)
    stored = StoredTensor(scheme, (5, 4, 8), {"values": torch.randn(5, 4, 8)})
    Weight("experts", (4, 8), stack=InStack(3, 5)).rows((1, 3)).read(stored, torch.float32)
    assert scheme.converted_shapes == [(1, 4, 8)]
