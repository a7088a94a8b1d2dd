"""Packed products equal float64 ones for ragged shapes, and do not depend on what is computed beside them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_kernels.cpu.library import KernelsRecord, kernels
from plimsoll_kernels.cpu.linear import PackedLinear

SETS = [(torch.float32, "avx2"), (torch.float32, "avx512"), (torch.bfloat16, "avx512_bf16")]


@pytest.fixture(scope="session", params=SETS, ids=[name for _, name in SETS])
def instructions(request: pytest.FixtureRequest) -> tuple[KernelsRecord, torch.dtype]:
    dtype, name = request.param
    found = kernels(dtype, name)
    if found is None:
        pytest.skip(f"this processor does not have {name}, or the kernels were not built")
    assert found.name == name.encode()
    return found, dtype


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 150),
    inputs=st.integers(1, 200),
    biased=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_shape(
    instructions: tuple[KernelsRecord, torch.dtype], rows: int, columns: int, inputs: int, biased: bool, seed: int
) -> None:
    found, dtype = instructions
    x, weight = numbers(seed, rows, inputs).to(dtype), numbers(seed + 1, columns, inputs).to(dtype)
    bias = numbers(seed + 2, columns) if biased else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    actual = PackedLinear(found, weight, bias)(x)
    assert actual.dtype is torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5 * inputs**0.5)


def test_more_rows_than_stay_in_the_cache(instructions: tuple[KernelsRecord, torch.dtype]) -> None:
    found, dtype = instructions
    x, weight = numbers(0, 700, 1024).to(dtype), numbers(1, 100, 1024).to(dtype)
    torch.testing.assert_close(
        PackedLinear(found, weight)(x).double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-3
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_the_same_in_every_batch(instructions: tuple[KernelsRecord, torch.dtype], threads: int) -> None:
    found, dtype = instructions
    x, weight = numbers(0, 64, 300).to(dtype), numbers(1, 130, 300).to(dtype)
    linear = PackedLinear(found, weight)
    before = torch.get_num_threads()
    whole = linear(x)
    try:
        torch.set_num_threads(threads)
        assert all(torch.equal(linear(x[i : i + 1])[0], whole[i]) for i in (0, 11, 12, 63))
        assert torch.equal(linear(x[5:22]), whole[5:22])
    finally:
        torch.set_num_threads(before)


def test_no_rows(instructions: tuple[KernelsRecord, torch.dtype]) -> None:
    found, dtype = instructions
    linear = PackedLinear(found, torch.ones(3, 4, dtype=dtype))
    assert linear(torch.ones(0, 4, dtype=dtype)).shape == (0, 3)


def test_a_nan_stays_in_its_row(instructions: tuple[KernelsRecord, torch.dtype]) -> None:
    found, dtype = instructions
    x = torch.ones(5, 33, dtype=dtype)
    x[2, 7] = float("nan")
    out = PackedLinear(found, torch.ones(40, 33, dtype=dtype))(x)
    assert out[2].isnan().all()
    assert (out[[0, 1, 3, 4]] == 33).all()
