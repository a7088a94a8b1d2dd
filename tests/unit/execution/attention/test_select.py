"""A backend that was asked for is honoured or refused, never replaced."""

import pytest
import torch

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention import select as module
from plimsoll_runtime.execution.attention.select import select
from plimsoll_runtime.models.spec import AttentionShape

SHAPES = [AttentionShape(heads=4, kv_heads=2, head_dim=64, scale=0.125)]
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("name", "device", "chosen"),
    [
        ("auto", CPU, "cpu"),
        ("cpu", CPU, "cpu"),
        ("reference", CPU, "reference"),
        ("auto", GPU, "triton"),
        ("triton", GPU, "triton"),
        ("reference", GPU, "reference"),
    ],
)
def test_chosen(name: str, device: torch.device, chosen: str) -> None:
    if chosen == "triton":
        pytest.importorskip("triton")
    assert select(name, device, SHAPES).name == chosen


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("triton", CPU, "needs a CUDA or ROCm device, and the model is on cpu"),
        ("cpu", GPU, "computes on a CPU, and the model is on cuda"),
        ("flash", CPU, "flash is unknown; choose auto, cpu, triton, reference"),
    ],
)
def test_refused(name: str, device: torch.device, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select(name, device, SHAPES)


def test_a_gpu_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs the package triton, which is not installed"):
        select("triton", GPU, SHAPES)
    with pytest.raises(UsageError, match="no attention backend runs on cuda: triton needs the package"):
        select("auto", GPU, SHAPES)
