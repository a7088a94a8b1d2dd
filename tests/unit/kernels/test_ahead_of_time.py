"""Every Triton kernel compiles for its target devices on a machine without them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from kernel_support.elsewhere import printed

SHARED_BYTES = {"sm_90": 227 * 1024, "sm_80": 163 * 1024, "gfx942": 64 * 1024}
"""Shared memory of a program: CUDA's programming guide, table of compute capabilities; AMD's MI300 instruction set."""
SLOWEST = 240

pytestmark = [
    pytest.mark.timeout(SLOWEST + 30),
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
]


@pytest.fixture(scope="module")
def compiled() -> list[dict[str, Any]]:
    """Return all kernels for all devices, from a process in which Triton compiles; here it interprets."""
    return printed("kernel_support.ahead", *SHARED_BYTES, seconds=SLOWEST)


@pytest.mark.long
@pytest.mark.parametrize("target", SHARED_BYTES)
def test_every_kernel_compiles_and_fits(compiled: list[dict[str, Any]], target: str) -> None:
    from kernel_support.launches import KERNELS

    mine = [c for c in compiled if c["target"] == target]
    assert {c["kernel"] for c in mine} == KERNELS
    for kernel in mine:
        assert kernel["binary_bytes"] > 0
        assert kernel["shared"] <= SHARED_BYTES[target], kernel


@pytest.mark.long
def test_chunks_multiply_on_hoppers_own_units(compiled: list[dict[str, Any]]) -> None:
    """Keys and values arrive during the arithmetic, and a tile of 64 rows uses a warp group's product."""
    (chunk,) = [c for c in compiled if (c["target"], c["launch"], c["kernel"]) == ("sm_90", "prefill", "_prefill")]
    assert chunk["asynchronous_copies"]
    assert chunk["warp_group_products"]


def test_shared_prefixes_multiply_there_as_well(compiled: list[dict[str, Any]]) -> None:
    """Shared blocks are multiplied like a chunk; the others are read like those of decodes."""
    (prefix,) = [
        c for c in compiled if (c["target"], c["launch"], c["kernel"]) == ("sm_90", "decode shared", "_prefix")
    ]
    assert prefix["asynchronous_copies"]
    assert prefix["warp_group_products"]
    decodes = {c["launch"]: c for c in compiled if (c["target"], c["kernel"]) == ("sm_90", "_decode")}
    assert decodes["decode shared"]["shared"] <= decodes["decode"]["shared"]
