"""The device for Triton's kernels, and a working Ctrl-C."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(scope="module")
def ctrl_c() -> Iterator[None]:
    """Make SIGINT raise KeyboardInterrupt, because a shell without job control starts background processes with SIGINT
    ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def triton_device(request: pytest.FixtureRequest) -> str:
    """The device for Triton's kernels: "cpu" (interpreted), and "cuda"."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    if request.param == "interpreter":
        if not INTERPRETED:
            pytest.skip("there is a GPU: set TRITON_INTERPRET=1 to interpret the kernels instead")
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    if INTERPRETED:
        pytest.skip("TRITON_INTERPRET=1 is set")
    return "cuda"
