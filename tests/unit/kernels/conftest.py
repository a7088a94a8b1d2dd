"""Fixtures of the tests of all kernels."""

from __future__ import annotations

import pytest
import torch

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
"""Two units in the last place: Triton's interpreter truncates where torch rounds, and a sum and its norm do so
twice.
"""


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised memory is NaN, so that a value that a kernel does not write is never right by chance."""
    plain_empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        tensor: torch.Tensor = plain_empty(*args, **kwargs)  # type: ignore[call-overload]
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture(params=list(TOLERANCES), ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture
def tolerance(dtype: torch.dtype) -> float:
    return TOLERANCES[dtype]
