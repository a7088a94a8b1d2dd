"""Every implementation of the choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.cpu.sampling import sample_rows
from plimsoll_kernels.sampling.params import RowParams
from plimsoll_kernels.sampling.reference import sample_reference

Sample = Callable[[Tensor, RowParams, Tensor], tuple[Tensor, Tensor]]
SETS = {"avx2": torch.float32, "avx512": torch.float32, "avx512_bf16": torch.bfloat16}


@pytest.fixture(scope="session", params=["reference", *SETS])
def sample(request: pytest.FixtureRequest) -> Sample:
    """The reference, and the kernels of each instruction set."""
    if request.param == "reference":
        return sample_reference
    found = kernels(SETS[request.param], request.param)
    if found is None:
        pytest.skip(f"this processor does not have {request.param}, or the kernels were not built")
    return partial(sample_rows, found)
