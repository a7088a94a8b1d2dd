"""A kernel runs if it can; a requested one that cannot run is refused."""

import pytest
import torch

from plimsoll_kernels import dispatch
from plimsoll_kernels.dispatch import use_triton


def test_a_cpu_takes_the_reference_unless_asked() -> None:
    assert not use_triton("auto", torch.ones(1))
    assert not use_triton("reference", torch.ones(1))


def test_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(dispatch, "_interpreted", lambda: False)
    with pytest.raises(ValueError, match="needs a CUDA or ROCm tensor, got one on cpu"):
        use_triton("triton", torch.ones(1))


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_installed", lambda: False)
    assert not use_triton("auto", torch.ones(1))
    with pytest.raises(ValueError, match="triton is not installed"):
        use_triton("triton", torch.ones(1))
