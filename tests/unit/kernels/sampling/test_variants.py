"""Another batch size compiles nothing new."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from kernel_support.elsewhere import printed

LAUNCHES = 7
SLOWEST = 120

pytestmark = [
    pytest.mark.timeout(SLOWEST + 30),
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
]


@pytest.mark.long
def test_every_kernel_has_one_variant_for_batches_of_all_sizes() -> None:
    found = printed("kernel_support.sampling_variants", seconds=SLOWEST)
    assert found
    for variants in found:
        assert len(variants) == LAUNCHES
        assert set(variants.values()) == {1}, variants
