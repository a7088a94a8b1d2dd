"""Every implementation of sampling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from kernel_support.instructions import SETS
from torch import Tensor

from plimsoll_kernels.cpu.sampling import sample_rows
from plimsoll_kernels.sampling.reference import sample_reference

Sample = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture(scope="session", params=["reference", *SETS], ids=str)
def sample(request: pytest.FixtureRequest) -> Sample:
    """The reference, and the kernels of each instruction set."""
    if request.param == "reference":
        return sample_reference
    return partial(sample_rows, request.param.kernels())
