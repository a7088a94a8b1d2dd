"""No step of any size launches a variant of a kernel that the warm-up has not compiled."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from kernel_support.elsewhere import printed

SLOWEST = 120

pytestmark = [
    pytest.mark.timeout(SLOWEST + 30),
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
]


@pytest.fixture(scope="module")
def asked() -> list[dict[str, Any]]:
    """Return the variants that each step needs, from a process in which Triton compiles; here it interprets."""
    return printed("kernel_support.step_variants", seconds=SLOWEST)


@pytest.mark.long
def test_batches_of_any_size_compile_nothing_after_the_warm_up(asked: list[dict[str, Any]]) -> None:
    first, *steps, _ = asked
    assert first["step"] == "warm-up"
    warm = {kernel: set(keys) for kernel, keys in first["kernels"].items()}
    new = {each["step"]: [k for k, keys in each["kernels"].items() if not warm[k].issuperset(keys)] for each in steps}
    assert {step: kernels for step, kernels in new.items() if kernels} == {}


@pytest.mark.long
def test_what_is_left_of_the_variants(asked: list[dict[str, Any]]) -> None:
    """They differ in what they compute: the number of splits, a sum or heads of a norm, few or many rows."""
    counts = {kernel: len(keys) for kernel, keys in asked[0]["kernels"].items()}
    # Decodes alone and decodes that share a prefix: with 1 to 16 splits each, of which all but one are joined.
    splits = {"_decode": 2 * 5, "_latent": 6, "_join": 2 * 4, "_join_latent": 4}
    assert counts == dict.fromkeys(counts, 1) | splits | {"_rms_norm": 3, "_grouped_product": 2}


def test_tritons_own_hook_counts(asked: list[dict[str, Any]]) -> None:
    assert asked[-1] == {"counted": [1, 1, 2]}
