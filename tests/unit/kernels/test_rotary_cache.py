"""Norm, rotation and cache write in one kernel equal the three ops."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plimsoll_kernels.rotary_cache.op import rotary_cache

EPS = 1e-6


@dataclass
class Case:
    """Rows of a product within wider ones, and shuffled cells in caches of NaN."""

    heads: Tensor
    cos: Tensor
    sin: Tensor
    caches: Tensor
    cells: Tensor
    norm: Tensor | None

    def run(self, implementation: Any) -> tuple[Tensor, Tensor]:
        """(queries, both caches)."""
        caches = self.caches.clone()
        query = rotary_cache(
            self.heads,
            self.cos,
            self.sin,
            caches[0],
            caches[1],
            self.cells,
            norm=self.norm,
            eps=EPS,
            implementation=implementation,
        )
        return query, caches


def make(
    *,
    rows: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 32,
    rotated: int = 32,
    block_size: int = 8,
    norm: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    blocks = -(-rows // block_size) + 2
    angles = torch.randn(rows, rotated // 2) * 100
    wide = torch.randn(rows, heads + 2 * kv_heads + 1, size).to(device, dtype)
    weight = torch.randn(heads + kv_heads, size, device=device) if norm else None
    caches = torch.full((2, kv_heads, blocks, block_size, size), math.nan, dtype=dtype, device=device)
    cells = torch.randperm(blocks * block_size)[:rows].to(device)
    cos, sin = angles.cos().to(device, dtype), angles.sin().to(device, dtype)
    return Case(wide[:, 1:], cos, sin, caches, cells, weight)


def assert_equal(case: Case, tolerance: float) -> None:
    (query, caches), (expected, expected_caches) = case.run("triton"), case.run("reference")
    torch.testing.assert_close(query, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(caches, expected_caches, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert torch.equal(caches[1].isnan(), expected_caches[1].isnan()), "an unused cell was written"


@pytest.mark.matrix(8)
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(
    "shape",
    [
        {"heads": 32, "kv_heads": 8, "size": 128, "rotated": 128},
        {"heads": 4, "kv_heads": 1, "size": 256, "rotated": 256, "block_size": 16},
        {"rows": 5, "heads": 9, "kv_heads": 3, "size": 80, "rotated": 20},
    ],
    ids=["llama", "gemma", "partly rotated"],
)
def test_kernel(triton_device: str, dtype: torch.dtype, tolerance: float, shape: dict[str, int], norm: bool) -> None:
    assert_equal(make(**shape, norm=norm, dtype=dtype, device=triton_device), tolerance)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_values_are_copied_bit_for_bit(triton_device: str) -> None:
    """Values are neither rotated nor normed."""
    case = make(norm=True, device=triton_device)
    case.heads[0, 4 + 2, 3] = math.inf
    case.heads[1, 4 + 2, 1] = math.nan
    _, caches = case.run("triton")
    stored = caches[1].flatten(1, 2)[:, case.cells].transpose(0, 1)
    torch.testing.assert_close(stored, case.heads[:, 6:], rtol=0, atol=0, equal_nan=True)


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    rows=st.integers(1, 9),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 6),
    half=st.integers(1, 20),
    rest=st.integers(0, 20),
    block_size=st.sampled_from([1, 4, 16]),
    norm=st.booleans(),
)
def test_any_shape(
    triton_device: str, rows: int, kv_heads: int, group: int, half: int, rest: int, block_size: int, norm: bool
) -> None:
    case = make(
        rows=rows,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        size=2 * half + rest,
        rotated=2 * half,
        block_size=block_size,
        norm=norm,
        device=triton_device,
    )
    assert_equal(case, 1e-5)


def refusals() -> list[Any]:
    case = make(norm=True)
    return [
        (replace(case, heads=case.heads[:, :4]), "do not match"),
        (replace(case, heads=case.heads.half()), "key_cache is torch.float32 on cpu, but heads is torch.float16"),
        (replace(case, heads=case.heads[..., :16]), r"key_cache is \[2, 3, 8, 32\], expected \[2, 3, 8, 16\]"),
        (replace(case, cos=torch.ones(3, 17), sin=torch.ones(3, 17)), "with 0 < R <= 32"),
        (replace(case, cos=torch.ones(2, 16)), r"cos is \[2, 16\], expected \[3, 16\]"),
        (replace(case, cells=case.cells[:2]), r"cells is \[2\], expected \[3\]"),
        (replace(case, cells=case.cells.int()), "cells is torch.int32, expected torch.int64"),
        (replace(case, cells=case.cells.to("meta")), "cells is on meta, but heads is on cpu"),
        (replace(case, norm=torch.ones(4, 32)), r"norm is \[4, 32\], expected \[6, 32\]"),
    ]


@pytest.mark.parametrize(("case", "message"), refusals())
def test_refusals(case: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case.run("auto")
