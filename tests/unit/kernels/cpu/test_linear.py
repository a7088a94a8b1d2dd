"""Packed products equal float64 ones for ragged shapes, and do not depend on the other rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support.instructions import BFLOAT16, BUILDS, Build

from plimsoll_kernels.cpu.linear import PackedLinear
from plimsoll_kernels.cpu.threads import share, thread_count


@pytest.fixture(scope="session", params=BUILDS, ids=str)
def build(request: pytest.FixtureRequest) -> Build:
    chosen: Build = request.param
    chosen.kernels()
    return chosen


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.matrix(3)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 120),
    columns=st.integers(1, 150),
    inputs=st.integers(1, 700),
    biased=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_shape(build: Build, rows: int, columns: int, inputs: int, biased: bool, seed: int) -> None:
    x, weight = numbers(seed, rows, inputs).to(build.dtype), numbers(seed + 1, columns, inputs).to(build.dtype)
    bias = numbers(seed + 2, columns) if biased else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    actual = PackedLinear(build.kernels(), weight, bias)(x)
    assert actual.dtype is torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5 * inputs**0.5)


def test_more_rows_than_stay_in_the_cache(build: Build) -> None:
    x, weight = numbers(0, 700, 1024).to(build.dtype), numbers(1, 100, 1024).to(build.dtype)
    torch.testing.assert_close(
        PackedLinear(build.kernels(), weight)(x).double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-3
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_the_same_in_every_batch(build: Build, threads: int) -> None:
    x, weight = numbers(0, 64, 300).to(build.dtype), numbers(1, 130, 300).to(build.dtype)
    linear = PackedLinear(build.kernels(), weight)
    before = thread_count()
    whole = linear(x)
    try:
        share(threads)
        assert all(torch.equal(linear(x[i : i + 1])[0], whole[i]) for i in (0, 11, 12, 63))
        assert all(torch.equal(linear(x[5 : 5 + count]), whole[5 : 5 + count]) for count in (*range(2, 8), 17))
    finally:
        share(before)


def test_a_row_is_the_same_among_so_many_that_they_go_in_chunks(build: Build) -> None:
    """With rows so wide that a slice passes through several panels before the next slice."""
    x, weight = numbers(0, 700, 4096).to(build.dtype), numbers(1, 600, 4096).to(build.dtype)
    linear = PackedLinear(build.kernels(), weight)
    whole = linear(x)
    assert all(torch.equal(linear(x[i : i + 1])[0], whole[i]) for i in range(0, 700, 41))


def test_no_rows(build: Build) -> None:
    linear = PackedLinear(build.kernels(), torch.ones(3, 4, dtype=build.dtype))
    assert linear(torch.ones(0, 4, dtype=build.dtype)).shape == (0, 3)


def test_a_nan_stays_in_its_row(build: Build) -> None:
    x = torch.ones(5, 33, dtype=build.dtype)
    x[2, 7] = float("nan")
    out = PackedLinear(build.kernels(), torch.ones(40, 33, dtype=build.dtype))(x)
    assert out[2].isnan().all()
    assert (out[[0, 1, 3, 4]] == 33).all()


def test_every_bfloat16_is_read_exactly() -> None:
    """Each finite value as a weight, times one: tiny ones may become zero if a processor flushes them."""
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    weight = bits.view(torch.bfloat16)
    weight = weight[weight.isfinite()]
    weight = weight[: len(weight) // 2 * 2].view(-1, 2)
    for build in BFLOAT16:
        for column in range(2):
            out = PackedLinear(build.kernels(), weight)(torch.eye(2, dtype=torch.bfloat16)[column : column + 1])[0]
            expected = weight[:, column].float()
            flushed = expected.abs() < torch.finfo(torch.float32).smallest_normal
            assert torch.equal(out[~flushed], expected[~flushed])
            assert ((out == expected) | (out == 0))[flushed].all()
