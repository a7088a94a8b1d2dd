"""Paged attention's kernels equal the reference, and the reference attention without pages."""

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

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.op import paged_attention, write_cache
from plimsoll_kernels.paged_attention.reference import attention_reference
from plimsoll_kernels.paged_attention.terms import ScoreTerms


@dataclass
class Case:
    """A batch over a cache whose every unused cell is NaN."""

    query: Tensor
    keys: Tensor
    values: Tensor
    batch: PagedBatch

    def run(self, implementation: Any, **options: Any) -> Tensor:
        options.setdefault("scale", self.query.shape[2] ** -0.5)
        return paged_attention(self.query, self.keys, self.values, self.batch, implementation=implementation, **options)


def make(
    lengths: Sequence[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 32,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Case:
    """lengths: (rows, context) of each sequence."""
    needed = [-(-context // block_size) for _, context in lengths]
    num_blocks = sum(needed) + 5
    free = list(range(1, num_blocks))
    random.Random(seed).shuffle(free)
    tables = [[free.pop() for _ in range(count)] for count in needed]
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.full((kv_heads, num_blocks, block_size, size), math.nan) for _ in range(2))
    for (_, context), table in zip(lengths, tables, strict=True):
        for cache in (keys, values):
            fresh = torch.randn(kv_heads, len(table) * block_size, size, generator=generator)
            fresh[:, context:] = math.nan
            cache[:, table] = fresh.view(kv_heads, len(table), block_size, size)
    query = torch.randn(sum(rows for rows, _ in lengths), heads, size, generator=generator)
    query, keys, values = (x.to(device, dtype) for x in (query, keys, values))
    batch = PagedBatch.of([rows for rows, _ in lengths], [c for _, c in lengths], tables, device)
    return Case(query, keys, values, batch)


def no_bfloat16_in_the_interpreter(device: str, dtype: torch.dtype) -> None:
    if device == "cpu" and dtype is torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")


MIXED = [(1, 1), (1, 40), (7, 7), (5, 50), (1, 16), (33, 35)]


def test_reference_is_attention_without_pages() -> None:
    key, value, query = torch.randn(1, 40, 8), torch.randn(1, 40, 8), torch.randn(3, 1, 8)
    actual = attention_reference(query, key, value, scale=0.3, window=None, softcap=None)
    for row, seen in enumerate((38, 39, 40)):
        weights = torch.softmax(query[row, 0] @ key[0, :seen].T * 0.3, -1)
        torch.testing.assert_close(actual[row, 0], weights @ value[0, :seen])


def test_reference_window_and_soft_cap() -> None:
    key, value, query = torch.randn(1, 6, 8), torch.randn(1, 6, 8), torch.randn(1, 1, 8) * 10
    actual = attention_reference(query, key, value, scale=1.0, window=2, softcap=1.5)
    weights = torch.softmax(1.5 * torch.tanh(query[0, 0] @ key[0, 4:].T / 1.5), -1)
    torch.testing.assert_close(actual[0, 0], weights @ value[0, 4:])


@pytest.mark.matrix(8)
@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_kernel(triton_device: str, dtype: torch.dtype, tolerance: float, group: int, block_size: int) -> None:
    no_bfloat16_in_the_interpreter(triton_device, dtype)
    case = make(MIXED, heads=2 * group, block_size=block_size, dtype=dtype, device=triton_device)
    torch.testing.assert_close(case.run("triton"), case.run("reference"), rtol=tolerance, atol=tolerance)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("size", [16, 64, 80, 128, 256])
def test_head_sizes(triton_device: str, size: int) -> None:
    case = make(MIXED, size=size, device=triton_device)
    torch.testing.assert_close(case.run("triton"), case.run("reference"), rtol=1e-5, atol=1e-5)


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    "options", [{"window": 1}, {"window": 17}, {"softcap": 2.0, "window": 64, "scale": 0.9}], ids=str
)
def test_windows_and_soft_caps(triton_device: str, options: dict[str, Any]) -> None:
    case = make([*MIXED, (70, 200), (1, 130)], device=triton_device)
    torch.testing.assert_close(case.run("triton", **options), case.run("reference", **options), rtol=1e-5, atol=1e-5)


def test_reference_chunk() -> None:
    """A row at a multiple of the chunk starts a new one."""
    key, value, query = torch.randn(1, 9, 8), torch.randn(1, 9, 8), torch.randn(2, 1, 8)
    actual = attention_reference(query, key, value, scale=0.5, chunk=4)
    torch.testing.assert_close(actual[1, 0], value[0, 8])
    weights = torch.softmax(query[0, 0] @ key[0, 4:8].T * 0.5, -1)
    torch.testing.assert_close(actual[0, 0], weights @ value[0, 4:8])


def test_reference_slopes() -> None:
    """Distant tokens count less; coarse slopes count from the first token, in bfloat16."""
    key, value, query = torch.randn(1, 300, 8), torch.randn(1, 300, 8), torch.randn(1, 1, 8)
    slopes, back = torch.tensor([0.3]), torch.arange(299, -1, -1)
    scores = query[0, 0] @ key[0].T * 0.5
    actual = attention_reference(query, key, value, scale=0.5, slopes=slopes)
    torch.testing.assert_close(actual[0, 0], torch.softmax(scores - 0.3 * back, -1) @ value[0])
    actual = attention_reference(query, key, value, scale=0.5, slopes=slopes, coarse=True)
    slope, places = float(torch.tensor(0.3).bfloat16()), torch.arange(300.0).bfloat16().float()
    ahead = (slope * places).bfloat16().float() * 0.5
    torch.testing.assert_close(actual[0, 0], torch.softmax(scores + ahead, -1) @ value[0])


def test_reference_sinks() -> None:
    """A sink is an additional key, whose value is zero and whose score is the sink."""
    key, value, query = torch.randn(1, 6, 8), torch.randn(1, 6, 8), torch.randn(1, 1, 8)
    actual = attention_reference(query, key, value, scale=1.0, sinks=torch.tensor([1.5]))
    weights = torch.softmax(torch.cat([query[0, 0] @ key[0].T, torch.tensor([1.5])]), -1)[:-1]
    torch.testing.assert_close(actual[0, 0], weights @ value[0])


def per_head(kinds: list[str], device: str, heads: int = 4) -> dict[str, Any]:
    """Return slopes or sinks of `heads` heads, some of them far above every score."""
    made = {"slopes": 2.0 ** -torch.arange(1, heads + 1), "sinks": torch.linspace(-4, 30, heads)}
    return {name: made[name].to(device) for name in kinds}


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    "options", [{"chunk": 1}, {"chunk": 17}, {"chunk": 64, "softcap": 2.0}, {"chunk": 40, "window": 30}], ids=str
)
def test_chunks(triton_device: str, options: dict[str, Any]) -> None:
    case = make([*MIXED, (70, 200), (1, 130), (1, 129), (1, 65)], device=triton_device)
    torch.testing.assert_close(case.run("triton", **options), case.run("reference", **options), rtol=1e-5, atol=1e-5)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("kind", ["slopes", "sinks"])
@pytest.mark.parametrize("options", [{}, {"window": 17}, {"chunk": 30}, {"softcap": 2.0}], ids=str)
def test_slopes_and_sinks(triton_device: str, kind: str, options: dict[str, Any]) -> None:
    case = make([*MIXED, (70, 200), (1, 130)], device=triton_device)
    options = {**options, **per_head([kind], triton_device)}
    expected = case.run("reference", **options)
    torch.testing.assert_close(case.run("triton", **options), expected, rtol=1e-5, atol=1e-5)
    del options[kind]
    assert not torch.allclose(case.run("reference", **options), expected, atol=1e-2)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("splits", [1, 2, 8, 32])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("more", [[], ["sinks"], ["slopes"]], ids=str)
def test_a_decode_split_among_programs(triton_device: str, splits: int, window: int | None, more: list[str]) -> None:
    """Also into more splits than there are tiles of keys: the others have no work, and nothing of theirs is read."""
    from plimsoll_kernels.paged_attention.decode.kernel import launch_decode

    case = make([(1, 1), (1, 700), (3, 65), (1, 130)], device=triton_device)
    options: dict[str, Any] = {"scale": 0.2, "window": window, **per_head(more, triton_device)}
    expected = case.run("reference", **options)
    actual = torch.empty_like(expected).fill_(math.nan)
    launch_decode(actual, case.query, case.keys, case.values, case.batch, ScoreTerms(**options), splits=splits)
    assert actual[2:5].isnan().all(), "a chunk's rows are the prefill's"
    decodes = [0, 1, 5]
    torch.testing.assert_close(actual[decodes], expected[decodes], rtol=1e-5, atol=1e-5)


@pytest.mark.long
@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 60)), min_size=1, max_size=5),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 6),
    window=st.one_of(st.none(), st.integers(1, 40)),
    chunk=st.one_of(st.none(), st.integers(1, 40)),
    kinds=st.sampled_from([[], ["slopes"], ["sinks"]]),
    block_size=st.sampled_from([4, 16]),
)
def test_any_batch(
    triton_device: str,
    lengths: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    window: int | None,
    chunk: int | None,
    kinds: list[str],
    block_size: int,
) -> None:
    case = make(
        [(rows, rows + before) for rows, before in lengths],
        heads=kv_heads * group,
        kv_heads=kv_heads,
        size=16,
        block_size=block_size,
        device=triton_device,
    )
    options = {"window": window, "chunk": chunk, **per_head(kinds, triton_device, kv_heads * group)}
    torch.testing.assert_close(case.run("triton", **options), case.run("reference", **options), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 16), (9, 3, 80)], ids=str)
def test_cache_writes(triton_device: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    rows, kv_heads, size = shape
    cells = torch.randperm(64)[:rows].to(triton_device)
    wide = torch.randn(rows, 3 * kv_heads, size, device=triton_device).to(dtype)
    key, value = wide[:, :kv_heads], wide[:, -kv_heads:]
    caches = torch.zeros(4, kv_heads, 8, 8, size, dtype=dtype, device=triton_device)
    write_cache(key, value, caches[0], caches[1], cells, implementation="triton")
    write_cache(key, value, caches[2], caches[3], cells, implementation="reference")
    assert torch.equal(caches[0], caches[2])
    assert torch.equal(caches[1], caches[3])
    assert caches[0].flatten(1, 2)[:, cells].equal(key.transpose(0, 1))


def refusals() -> list[Any]:
    case = make([(2, 20)])
    longs = replace(case.batch, query_starts=case.batch.query_starts.long())
    return [
        (replace(case, query=torch.ones(2, 3, 32)), {}, "3 query heads are no multiple of 2 KV heads"),
        (replace(case, query=torch.ones(2, 4, 16)), {}, "do not match"),
        (replace(case, query=case.query.half()), {}, "key_cache is torch.float32 on cpu, but rows is torch.float16"),
        (replace(case, values=case.values[:, :3]), {}, "value_cache is"),
        (replace(case, batch=longs), {}, "query_starts is torch.int64 on cpu; expected contiguous int32"),
        (case, {"window": 0}, "window is 0; it must be at least 1"),
        (case, {"chunk": 0}, "chunk is 0; it must be at least 1"),
        (case, {"sinks": torch.ones(3)}, r"sinks is \[3\], expected \[4\]"),
        (case, {"slopes": torch.ones(4).half()}, "slopes is torch.float16 on cpu; expected contiguous float32"),
        (case, {"softcap": -1.0}, "softcap is -1.0; it must be positive"),
        (case, {"scale": 0.0}, "scale is 0.0; it must be positive"),
    ]


@pytest.mark.parametrize(("case", "options", "message"), refusals())
def test_refusals(case: Case, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case.run("auto", **options)


def test_write_refusals() -> None:
    case = make([(2, 20)])
    key, cells = torch.ones(2, 2, 32), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"cells is \[3\], expected \[2\]"):
        write_cache(key, key, case.keys, case.values, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="expected int64 on the device of key"):
        write_cache(key, key, case.keys, case.values, cells.int())
    with pytest.raises(ValueError, match=r"key is \[2, 3, 32\], expected \[2, 2, 32\]"):
        write_cache(torch.ones(2, 3, 32), key, case.keys, case.values, cells)
