"""Latent attention's kernels equal the reference for any heads, vectors, rows and splits."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plimsoll_kernels.latent_attention.op import latent_attention
from plimsoll_kernels.latent_attention.reference import latent_attention_reference
from plimsoll_kernels.latent_attention.tiles import head_tiles, tile_rows
from plimsoll_kernels.paged_attention.batch import PagedBatch


@dataclass
class Case:
    """A batch over a layer's part of a cache of several; every unused cell is NaN."""

    query: Tensor
    cache: Tensor
    batch: PagedBatch

    def run(self, implementation: Any) -> Tensor:
        scale = self.cache.shape[2] ** -0.5
        return latent_attention(self.query, self.cache, self.batch, scale=scale, implementation=implementation)


def make(
    lengths: Sequence[tuple[int, int]],
    *,
    heads: int = 4,
    size: int = 40,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """lengths: (rows, context) of each sequence."""
    needed = [-(-context // block_size) for _, context in lengths]
    free = list(range(1, sum(needed) + 3))
    random.Random(0).shuffle(free)
    tables = [[free.pop() for _ in range(count)] for count in needed]
    layers = torch.full((sum(needed) + 3, 2, block_size, size), math.nan)
    for (_, context), table in zip(lengths, tables, strict=True):
        fresh = torch.randn(len(table) * block_size, size)
        fresh[context:] = math.nan
        layers[table, 1] = fresh.view(len(table), block_size, size)
    rows = [rows for rows, _ in lengths]
    query = torch.randn(sum(rows), heads, size + 1).to(device, dtype)[..., :size]
    batch = PagedBatch.of(rows, [context for _, context in lengths], tables, device)
    return Case(query, layers.to(device, dtype)[:, 1], batch)


def assert_equal(case: Case, tolerance: float) -> None:
    torch.testing.assert_close(case.run("triton"), case.run("reference"), rtol=tolerance, atol=tolerance)


MIXED = [(1, 1), (1, 40), (7, 7), (5, 50), (1, 16), (33, 35)]


def test_the_reference_attends_to_vectors_themselves() -> None:
    case = make([(1, 20)])
    vectors = case.cache[case.batch.block_tables[0].long()].flatten(0, 1)[:20]
    expected = torch.softmax(case.query[0] @ vectors.T * 0.3, -1) @ vectors
    found = latent_attention_reference(case.query, case.cache, case.batch, scale=0.3)
    torch.testing.assert_close(found[0], expected)


@pytest.mark.matrix(3)
@pytest.mark.parametrize(("heads", "size"), [(16, 576), (20, 288), (40, 64)], ids=["deepseek", "minicpm", "no rest"])
def test_kernel(triton_device: str, dtype: torch.dtype, tolerance: float, heads: int, size: int) -> None:
    if triton_device == "cpu" and dtype is torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")
    assert_equal(make(MIXED, heads=heads, size=size, dtype=dtype, device=triton_device), tolerance)


@settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=3),
    heads=st.sampled_from([1, 3, 16, 17, 33]),
    size=st.integers(1, 70),
    block_size=st.sampled_from([1, 8, 16]),
)
def test_any_shape(triton_device: str, lengths: list[tuple[int, int]], heads: int, size: int, block_size: int) -> None:
    sequences = [(rows, rows + before) for rows, before in lengths]
    assert_equal(make(sequences, heads=heads, size=size, block_size=block_size, device=triton_device), 1e-5)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("splits", [2, 4, 16])
def test_splits(triton_device: str, splits: int) -> None:
    """Also if some splits have no work, and together with a sequence that is not a decode."""
    from plimsoll_kernels.latent_attention.kernel import launch_latent

    case = make([(1, 1), (3, 20), (1, 17), (1, 200)], heads=18, size=150, device=triton_device)
    out = torch.empty(case.query.shape, device=triton_device)
    launch_latent(out, case.query, case.cache, case.batch, scale=150**-0.5, chunks=False, splits=splits)
    decodes = [0, 4, 5]
    torch.testing.assert_close(out[decodes], case.run("reference")[decodes], rtol=1e-5, atol=1e-5)
    assert out[1:4].isnan().all(), "a chunk's rows were written"


@pytest.mark.parametrize(("heads", "tiles"), [(1, 1), (16, 1), (17, 1), (32, 1), (33, 2), (128, 4)])
def test_tiles_hold_all_heads(heads: int, tiles: int) -> None:
    assert head_tiles(heads) == tiles
    assert tile_rows(heads) * tiles >= heads


def refusals() -> list[Any]:
    case = make([(1, 3)])
    longs = replace(case.batch, context_lens=case.batch.context_lens.long())
    return [
        (replace(case, query=case.query[0]), "do not match"),
        (replace(case, query=case.query[..., :8]), r"\[1, 4, 8\] and cache \[4, 16, 40\] do not match"),
        (replace(case, query=case.query.half()), "cache is torch.float32 on cpu, but query is torch.float16"),
        (replace(case, batch=longs), "context_lens is torch.int64"),
    ]


@pytest.mark.parametrize(("case", "message"), refusals())
def test_refusals(case: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case.run("auto")


def test_a_scale_that_is_none() -> None:
    case = make([(1, 3)])
    with pytest.raises(ValueError, match="scale is 0; it must be positive"):
        latent_attention(case.query, case.cache, case.batch, scale=0)
